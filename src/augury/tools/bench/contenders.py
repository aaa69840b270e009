"""The contenders of a bench, and what each of them needs installed. Does not import torch."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Any

from augury.config.errors import ConfigError
from augury.methods.registry import METHODS

ALONE, IN_TURN, TOGETHER, PADDED = "alone", "one after another", "concurrent", "one padded batch"
ARITHMETICS = ("exact", "fast")  # Augury's on a CPU


@dataclass(frozen=True, slots=True)
class Contender:
    """One line of the table: which library, with or without speculation, and what it does with several prompts."""

    name: str
    library: str  # the module that must be importable
    make: str  # name of the class in peers.py
    plain: str  # the contender of the same library without speculation, which may be itself
    batching: str = IN_TURN  # what it does with several prompts
    speculates: bool = False
    load_format: str = "auto"  # Augury's
    arithmetic: str = ARITHMETICS[0]
    #: Augury's own speculative_config
    speculative: dict[str, Any] = field(default_factory=dict, compare=False)

    @property
    def in_turn(self) -> bool:
        """Whether several prompts are run one after another."""
        return self.batching == IN_TURN

    def mode(self, batch: int) -> str:
        """What a batch of that many prompts means to this contender."""
        return ALONE if batch == 1 else self.batching


@dataclass(frozen=True, slots=True)
class Setup:
    """What a worker process needs to build its contender."""

    contender: Contender
    directory: str  # weights in Hugging Face layout
    gguf: str | None  # the same weights as llama.cpp reads them
    dtype: str
    threads: int
    max_len: int  # longest prompt and answer together
    speculative: dict[str, Any] = field(default_factory=dict)
    ranks: int = 1  # of Augury's own: processes that divide the model and the threads


TRANSFORMERS = Contender("transformers", "transformers", "TransformersPeer", "transformers")
LLAMACPP = Contender("llamacpp", "llama_cpp", "LlamaCppPeer", "llamacpp")
IK_LLAMACPP = Contender("ik-llamacpp", "ik_llama_cpp", "IkLlamaCppPeer", "ik-llamacpp")  # a fork made for CPUs
READ_GGUF = {"llama_cpp": "'augury[llamacpp]'", "ik_llama_cpp": "ik-llama-cpp-python"}  # nothing else; by pip name
AUGURY = Contender("augury", "torch", "AuguryPeer", "augury", TOGETHER)
FIXED = (
    TRANSFORMERS,
    replace(TRANSFORMERS, name="transformers-lookup", speculates=True),
    # What a user of transformers would do with eight prompts; it has no meaning for one.
    replace(TRANSFORMERS, name="transformers-batch", batching=PADDED),
    LLAMACPP,
    replace(LLAMACPP, name="llamacpp-lookup", speculates=True),
    IK_LLAMACPP,
    AUGURY,
    # The same weights as float32 matrices, as transformers has them, where a quantised file could be run as it is.
    replace(AUGURY, name="augury-unpacked", load_format="safetensors"),
    # Activations of 8 bits, as llama.cpp has them.
    replace(AUGURY, name="augury-fast", plain="augury-fast", arithmetic="fast"),
)


def all_contenders(configs: list[dict[str, Any]]) -> dict[str, Contender]:
    """Every contender by name, in the order of the table; ours with speculation are named after their methods."""
    ours: dict[str, Contender] = {}
    labels = [label_of(config) for config in configs]
    for label, config in zip(labels, configs, strict=True):
        name = label if labels.count(label) == 1 else f"{label}-K{config['num_speculative_tokens']}"
        if f"augury-{name}" in ours:
            raise ConfigError(f"-sc: two are called {name}; leave one out, or give them other numbers of tokens.")
        one = replace(AUGURY, name=f"augury-{name}", speculates=True, speculative=config)
        fast = replace(one, name=f"{one.name}-fast", plain="augury-fast", arithmetic="fast")
        ours |= {one.name: one, fast.name: fast}
    return {contender.name: contender for contender in FIXED} | ours


def label_of(config: dict[str, Any]) -> str:
    """`augury train`'s name for this kind of drafter, such as P-EAGLE, or else its method."""
    method: str = config["method"]
    kinds = METHODS[method].trained.items() if method in METHODS else ()
    return next((name for name, kind in kinds if kind.settings and kind.settings.items() <= config.items()), method)


def choose(
    peers: list[str], configs: list[dict[str, Any]], gguf: str | None, packed: bool = True
) -> tuple[list[Contender], dict[str, str]]:
    """The contenders asked for (none named: all that can run), and why each of the others was left out."""
    known = all_contenders(configs)
    for name in peers:
        if name not in known:
            raise ConfigError(f"--peers {name}: unknown; choose from {', '.join(known)}.")
    chosen, left_out = [], {}
    for contender in known.values():
        if peers and contender.name not in peers:
            continue
        reason = _missing(contender, gguf, packed)
        if reason and peers:
            raise ConfigError(f"--peers {contender.name}: {reason}.")
        if reason:
            left_out[contender.name] = reason
        else:
            chosen.append(contender)
    return chosen, left_out


def _missing(contender: Contender, gguf: str | None, packed: bool) -> str | None:
    if find_spec(contender.library) is None:
        package = READ_GGUF.get(contender.library, "'augury[engine]'")
        return f"{contender.library} is not installed; `pip install {package}`"
    if contender.library in READ_GGUF and gguf is None:
        return "llama.cpp reads GGUF files only; use --model default or a .gguf file"
    if (contender.load_format, contender.arithmetic) != ("auto", "exact") and not packed:
        return "the same as augury: these weights have no packed form in this dtype"
    return None
