"""What vLLM's own class refuses in a configuration whose keys are all valid: names and checkpoints it cannot load.

tests/helpers/vllm_oracle compares this with the class itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from augury.config.facts import find, is_local
from augury.config.kernel_names import backends, quantizations, unlike
from augury.config.versions import release, valid_in, version
from augury.methods.notes import Note
from augury.methods.recognise import is_import_path, recognise
from augury.methods.registry import ALIASES, METHODS
from augury.methods.spec import Case, Method

DRAFTING = re.compile("(?i)eagle|medusa|mlpspeculator|dflash|dspark|speculator")  # in the name of a drafter's class
CLASSES = {name: window for card in METHODS.values() for name, window in card.vllm_classes.items()}
NO_CLASS = "has no such class"
NOT_HERE = "is not on this machine"
LOOKED_UP_SINCE = version("0.10")  # before, an older engine named its classes otherwise
LOAD_KEYS = (
    "load_format",
    "download_dir",
    "safetensors_load_strategy",
    "safetensors_prefetch_num_threads",
    "safetensors_prefetch_block_size",
    "model_loader_extra_config",
    "device",
    "ignore_patterns",
    "use_tqdm_on_load",
    "pt_load_map_location",
)


def class_refuses(card: Method, case: Case, as_of: str) -> Iterator[Note]:
    """Every reason for which vLLM refuses, beyond what is refused by key, type or size."""
    for key, says in (*_kernels(card, case, as_of), *_loading(case)):
        yield Note("vllm", key, says, refused=True)
    if card.has_weights and case.keys.get("model") is not None:
        for says in (*_name(case), *unloadable(card, case, as_of)):
            yield Note("vllm", "model", says, refused=True)


def _kernels(card: Method, case: Case, as_of: str) -> Iterator[tuple[str, str]]:
    wanted, backend, quantization = release(as_of), case.keys.get("attention_backend"), case.keys.get("quantization")
    known = backends(wanted)
    if backend and known and backend.upper() not in known:
        yield "attention_backend", f"vLLM {as_of} has no {backend}{unlike(backend.upper(), known)}"
    names = quantizations(wanted)
    if quantization and card.has_weights and quantization.lower() not in names:
        yield "quantization", f"vLLM {as_of} has no {quantization} unless a plugin does{unlike(quantization, names)}"


def _loading(case: Case) -> Iterator[tuple[str, str]]:
    given = case.keys.get("draft_load_config") or {}
    for name, value in given.items():
        if name not in LOAD_KEYS:
            yield "draft_load_config", f"vLLM's LoadConfig has no {name}{unlike(name, list(LOAD_KEYS))}"
        elif name == "load_format" and not isinstance(value, str):
            yield "draft_load_config", f"load_format is a word such as 'auto', not {value!r}"


def _name(case: Case) -> Iterator[str]:
    """Yield why `model` is neither a directory nor a hub id."""
    model = case.keys["model"]
    if case.draft is not None or is_local(model) or find(model, case.keys.get("revision")):
        return
    bare = model.strip("[]")
    if model.startswith(("http://", "https://")):
        yield "vLLM takes a directory or a hub id, not a URL."
    elif bare != model or bare in METHODS or bare in ALIASES or is_import_path(model):
        yield f"{model!r} is no checkpoint: vLLM looks for it on the hub. Name the drafter's directory or hub id."
    elif model.startswith(("/", "./", "../")):
        yield f"{model} {NOT_HERE}; vLLM refuses a path that it does not find."


def unloadable(card: Method, case: Case, as_of: str) -> Iterator[str]:
    """Yield why vLLM has no code for the checkpoint, by its config.json."""
    if case.draft is None:
        return
    raw = case.draft.raw
    nested = "model_type" not in raw and raw.get("speculators_config") is not None and not card.vllm_writes
    if nested:  # the speculators format, which vLLM translates
        return
    if "model_type" not in {**raw, **card.vllm_writes}:
        yield "vLLM does not recognise a checkpoint whose config.json has no model_type."
    elif release(as_of) >= LOOKED_UP_SINCE:
        yield from _class(card, raw, case.draft.architectures, as_of)


def _class(card: Method, raw: Mapping[str, object], named: tuple[str, ...], as_of: str) -> Iterator[str]:
    for name in named[:1]:
        made = vllm_class(card, name)
        missing = [one for one in (name, made) if DRAFTING.search(one) and not _has(one, as_of)]
        told = recognise(raw)
        meant = f": it looks like {told.method!r}, write that" if told and told.method != card.name else ""
        if missing and made != name:
            yield f"for {card.name!r} vLLM {as_of} makes {made} of {name}, and {NO_CLASS}{meant}."
        elif missing:
            yield f"of {name} vLLM {as_of} {NO_CLASS}{meant}."


def vllm_class(card: Method, name: str) -> str:
    """The class that vLLM looks up for an architecture, with the method's prefix put before it where needed."""
    ready = name.startswith(card.vllm_prefix) or name.endswith(card.vllm_prefix) or name in card.vllm_kept
    return name if ready else f"{card.vllm_prefix}{name}"


def _has(name: str, as_of: str) -> bool:
    return name in CLASSES and valid_in(release(as_of), *CLASSES[name])
