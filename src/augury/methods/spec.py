"""What a speculation method is, said without importing torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

MAX_NODES = 63  # the largest draft: the ancestors of a node fit the bits of one int64

# Keys of speculative_config that only drafters with weights of their own read.
WEIGHT_KEYS = (
    "model", "revision", "code_revision", "draft_load_config", "quantization", "enforce_eager", "max_model_len",
    "draft_tensor_parallel_size", "attention_backend", "kv_cache_dtype", "moe_backend",
)  # fmt: skip
SAMPLED_KEYS = ("draft_sample_method", "use_local_argmax_reduction", "enable_adaptive_verification")
TREE_KEYS = ("tree", "speculative_token_tree")
PADDED_KEYS = ("disable_padded_drafter_batch",)
BLOCK_DROP_KEYS = ("disable_eagle_block_drop",)


def whole(value: object) -> int | None:
    """A count as a checkpoint may state it: a whole number above 0, or nothing."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


class Facts(NamedTuple):
    """What is known when the number of drafted tokens is settled."""

    draft: Mapping[str, Any]  # config.json of the checkpoint that drafts; empty when it could not be read
    keys: Mapping[str, Any]  # the user's keys, checked


class Band(NamedTuple):
    """Where a healthy deployment lies: accepted over drafted, and tokens a step with the target's own."""

    rate: tuple[float, float] | None
    length: tuple[float, float] | None
    where: str


Inferred = tuple[int, str]  # a number of tokens, and where it comes from


def nothing_known(facts: Facts) -> Inferred | None:
    """K cannot be told from the checkpoint."""
    return None


def any_number(tokens: int, facts: Facts) -> str | None:
    """Every K will do."""
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
    default_tokens: Callable[[Facts], Inferred | None] = nothing_known
    check_tokens: Callable[[int, Facts], str | None] = any_number  # what is wrong with K, if anything
    extra_slots: Callable[[int, bool], int] = no_slots  # drafting rows a request beyond its own, from K and parallel
    lookahead: Literal[0, 1, 2] = 0  # KV rows written ahead of the known text: none, K, K + 1
    prefill_lookahead: int = 0  # prompt tokens the drafter must see past the end of a chunk
    vllm_since: str = "0.8.2"
    vllm_until: str | None = None  # the first release that no longer runs it
    vllm_gap: tuple[str, str] | None = None  # releases in between that refused it
    vllm_old_runner: bool = False  # vLLM falls back to its deprecated model runner for it
    vllm_async: bool = True  # vLLM's asynchronous scheduling works with it
    band: Band | None = None

    @property
    def continues_target(self) -> bool:
        """Whether it carries the target's hidden states on from token to token (vLLM's `use_eagle` family)."""
        return self.lookahead > 0 and self.features != "none"
