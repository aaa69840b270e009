"""What describes a speculation method, without torch: data, and hooks for what depends on a case."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from augury.methods.bands import Band as Band
from augury.methods.facts import ModelFacts, TargetInfo
from augury.methods.notes import Note

NEVER = "augury"  # `vllm_since` of a method that vLLM does not have
MAX_NODES = 63  # the largest draft: the ancestors of a node fit the bits of one int64

# Keys of speculative_config that only drafters with weights of their own read.
WEIGHT_KEYS = (
    "model",
    "revision",
    "code_revision",
    "draft_load_config",
    "quantization",
    "enforce_eager",
    "max_model_len",
    "draft_tensor_parallel_size",
    "attention_backend",
    "kv_cache_dtype",
    "moe_backend",
)
SAMPLED_KEYS = ("draft_sample_method", "use_local_argmax_reduction", "enable_adaptive_verification")
TREE_KEYS = ("tree", "speculative_token_tree")
PADDED_KEYS = ("disable_padded_drafter_batch",)
BLOCK_DROP_KEYS = ("disable_eagle_block_drop",)
MODEL_KEYS = (*WEIGHT_KEYS, *SAMPLED_KEYS, *TREE_KEYS)  # of drafters that run token by token or block by block
HEAD_KEYS = (*MODEL_KEYS, *PADDED_KEYS, *BLOCK_DROP_KEYS)  # of those that continue the target's hidden states


def whole(value: object) -> int | None:
    """A count as a checkpoint may state it: a whole number above 0, else None."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


class Case(NamedTuple):
    """What is known while a configuration is resolved: the keys so far, the target, the drafter's files."""

    keys: Mapping[str, Any] = {}
    target: TargetInfo = TargetInfo()
    draft: ModelFacts | None = None

    @property
    def stated(self) -> dict[str, Any]:
        """The drafter's config.json, the inner part of it included; empty when it could not be read."""
        return {**self.draft.text, **self.draft.raw} if self.draft else {}

    def after(self, change: Change) -> Case:
        """The case with a change made; a key that becomes None is left out."""
        keys = {**self.keys, **change.keys}
        return self._replace(keys={name: value for name, value in keys.items() if value is not None})


class Change(NamedTuple):
    """What one stage of resolving decides: keys to set (None: leave out), and notes for the user."""

    keys: Mapping[str, Any] = {}
    notes: tuple[Note, ...] = ()


class SpeculatorType(NamedTuple):
    """A type of the speculators format: what such a checkpoint fixes, and why."""

    fixes: Mapping[str, Any] = {}
    what: str = ""  # the checkpoint, in words
    nested: bool = True  # whether its layers are described in transformer_layer_config


class Signs(NamedTuple):
    """How a checkpoint of the method is recognised."""

    speculators: Mapping[str, SpeculatorType] = {}  # by speculators_model_type; as model_type they are known too
    model_types: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()  # parts of a class's name
    fields: tuple[str, ...] = ()  # keys that no other config.json has
    names: tuple[str, ...] = ()  # parts of a model's name; asked for such a method, vLLM looks no further
    stand_ins: tuple[str, ...] = ()  # words written as the model of a method that has none


NO_SIGNS = Signs()


class LookUp(NamedTuple):
    """A method that drafts from text alone: settings to start with, and how a recorded text is replayed with it."""

    walker: str  # "package.module:Class", imported when a trace is replayed
    starts: tuple[Mapping[str, Any], ...]  # settings to try, the usual one first
    tokens: int | None  # the usual K; None: as much as it finds
    lengths: tuple[int, ...]  # values of K worth a try
    words: Callable[[Any], list[str]]  # a configuration's settings in a few words
    forgets: Mapping[str, Any] = {}  # the setting that keeps past answers from it; empty: it never sees them
    twin_of: str = ""  # the method that makes the same drafts elsewhere


class UsualHead(NamedTuple):
    """The head that is usually published for a target, in the target's own sizes; it shares the target's embedding."""

    layers: int = 1
    joins: Callable[[int, int], int] = lambda hidden, values: 0  # weights before the first layer, by widths
    stated: bool = True  # whether a checkpoint's config.json tells of those
    vocabulary: int | None = None  # words of its own; None: all, through the target's own matrix
    of_target: bool = False  # the layer is one of the target's


class GateRecipe(NamedTuple):
    """How a gate head is trained: it shows, on the prompts it has seen, that the method's whole path works."""

    train: str  # "package.module:function", imported when a gate is made
    steps: int
    rate: float = 1e-3
    settings: Mapping[str, Any] = {}  # keys it is run with


class Trained(NamedTuple):
    """A kind of drafter that `augury train` makes."""

    trainee: str  # "package.module:Class", imported when it is trained
    head: str = ""  # "package.module:Class" of the network, where one trainee serves several
    settings: Mapping[str, Any] = {}  # keys it is run with
    speculator: tuple[str, str] = ("", "")  # its type and its class in the speculators format; empty: it has none
    layers: Literal["", "residual", "its own", "the target's"] = ""  # what it is a stack of; empty: it is none


PAIRS = "augury.train.trainee:PairTrainee"  # trains heads that read pairs (token, features of the one before)

Window = tuple[str, str | None]  # releases of vLLM: the first, and the first that is too late
Inferred = tuple[int, str]  # a number of tokens, and where it comes from


def nothing_known(case: Case) -> Inferred | None:
    """None: K cannot be inferred from the checkpoint."""
    return None


def any_number(tokens: int, case: Case) -> str | None:
    """None: every K is valid."""
    return None


def no_slots(tokens: int, parallel: bool) -> int:
    """The drafter needs no input rows beyond the target's."""
    return 0


@dataclass(frozen=True, slots=True)
class Method:
    """A method's card: what it is, what it needs, how long its drafts are, where its drafter lives."""

    name: str
    help: str  # one sentence for tables and errors
    drafter: str  # "package.module:Class", imported when the engine builds it
    aliases: Mapping[str, str] = field(default_factory=dict)  # names vLLM has retired, and since when it knew them
    keys: tuple[str, ...] = ()  # keys of speculative_config that not every method reads
    weights: Literal["none", "draft", "target", "either", "import path"] = "none"  # where its weights or code live
    features: Literal["none", "last", "auxiliary"] = "none"  # what it reads of the target besides tokens
    signs: Signs = NO_SIGNS
    tells: Callable[[ModelFacts, TargetInfo], str] = lambda draft, target: ""  # why a whole model is one, if so

    # Resolving a configuration.
    check_target: Callable[[Case], None] = lambda case: None  # refuse a target that cannot have it
    default_tokens: Callable[[Case], Inferred | None] = nothing_known
    check_tokens: Callable[[int, Case], str | None] = any_number  # what is wrong with K, if anything
    remark_tokens: Callable[[int, Case], str | None] = any_number  # what to expect of K, if it is worth a word
    settle: Callable[[Case], Change] = lambda case: Change()  # defaults that depend on other keys
    check: Callable[[Case], tuple[Note, ...]] = lambda case: ()  # refuse what does not fit, remark on what is odd
    always_parallel: bool = False  # drafts in parallel without parallel_drafting
    inside: str = ""  # why its layers in a target's own files do not run here, if they do not
    shards_adaptively: bool = False  # vLLM adapts verification with argmax within the shards
    own_context: bool = True  # the checkpoint's position limit binds; otherwise it follows the target's

    # What the engine makes room for.
    extra_slots: Callable[[int, bool], int] = no_slots  # drafting rows per request beyond its own, from K and parallel
    lookahead: Literal[0, 1, 2] = 0  # KV rows written ahead of the known text: none, K, K + 1
    skips_first_row: Callable[[Case], bool] = lambda case: False  # the checkpoint drafts from masks alone: K + 1
    prefill_lookahead: int = 0  # prompt tokens the drafter must see past the end of a chunk
    modules: Callable[[Case], int] = lambda case: 1  # layers that draft one after another
    saves_states: bool = False  # it drafts nothing, and saves what it reads

    # What vLLM makes of it.
    vllm_since: str = "0.8.2"
    vllm_until: str | None = None  # the first release that no longer runs it
    vllm_gap: tuple[str, str] | None = None  # releases in between that refused it
    vllm_old_runner: bool = False  # vLLM falls back to its deprecated model runner for it
    vllm_new_runner: tuple[str, str] | None = None  # the new one gained it between these releases
    vllm_async: bool = True  # vLLM's asynchronous scheduling works with it
    vllm_async_since: str | None = None  # before, some releases could and none did by default
    vllm_tells_tokens: bool = False  # K may be left out there too
    vllm_checks_tokens: bool = True  # a K that the checkpoint does not fit is refused there too
    vllm_fixed_tokens: bool = False  # the old runner asserts the configured K
    vllm_lacks: tuple[str, ...] = ()  # keys not implemented for it
    vllm_needs: str = ""  # the command that installs what it needs
    vllm_detects: Callable[[Mapping[str, Any]], bool] = lambda draft: False  # a checkpoint, beyond the signs
    vllm_prefix: str = ""  # what it puts before the name of a checkpoint's architecture, unless it is there
    vllm_kept: tuple[str, ...] = ()  # architectures it leaves alone
    vllm_classes: Mapping[str, Window] = field(default_factory=dict)  # architectures it has code for, and when
    vllm_writes: Mapping[str, Any] = field(default_factory=dict)  # into the checkpoint's config.json before it looks

    # What operators ask.
    band: Band | None = None
    one_pass: bool = False  # the whole draft in one pass of the drafter
    look_up: LookUp | None = None
    usual: UsualHead | None = None
    checkpoint: Callable[[Mapping[str, Any], int], dict[str, Any]] | None = None  # a usual config.json, by target and K
    sharded: bool = False  # it runs on all of the target's devices, as a whole model does
    divided: bool = False  # here its weights can be divided among ranks, as the target's are
    gates: Mapping[str, GateRecipe] = field(default_factory=dict)  # by the gate's name, the method's own first
    published: str = ""  # who reads its checkpoints, where the speculators format has nothing like them
    trained: Mapping[str, Trained] = field(default_factory=dict)  # by the name that `augury train` knows
    prose: tuple[str, ...] = ()  # how texts name it, besides its name

    @property
    def kinds(self) -> tuple[str, ...]:
        """Model types of its checkpoints."""
        return (*self.signs.speculators, *self.signs.model_types, *self.aliases)

    @property
    def own(self) -> bool:
        """Whether the method is our own, because vLLM has nothing like it."""
        return self.vllm_since == NEVER

    @property
    def has_weights(self) -> bool:
        """Whether a model drafts, one of its own or a part of the target."""
        return self.weights not in ("none", "import path")

    @property
    def continues_target(self) -> bool:
        """Whether it carries the target's hidden states on from token to token (vLLM's `use_eagle` family)."""
        return self.lookahead > 0 and self.features != "none"

    @property
    def masks(self) -> bool:
        """Whether parallel drafting is optional; it is done with rows of masks, one per depth."""
        return "parallel_drafting" in self.keys and not self.always_parallel
