"""Kernel names in a command, for the target and the drafter: attention back ends and quantisations."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple

from augury.config.versions import Version, version
from augury.tools.doctor.arguments import Flag, ReadArguments
from augury.tools.doctor.found.places import Edit, set_value
from augury.tools.doctor.problems import Problem

VARIABLE = "VLLM_ATTENTION_BACKEND"

# vLLM ignores the case of a back end's name. A release may know more names than this list, so a missing name is a
# remark and never an error; whole families are known by a part of their names.
BACKENDS = ("FLASH_ATTN", "FLASHINFER", "TRITON_ATTN", "FLEX_ATTENTION", "CPU_ATTN", "TREE_ATTN")
BACKEND_FAMILIES = re.compile(r"ROCM_|MLA|^CUSTOM$")
BACKEND_GONE = {"TREE_ATTN": "0.21"}

# Names in use; which release accepts which is not recorded here.
QUANTIZATIONS = tuple(
    """
    ascend auto-round auto_round awq awq_marlin bitblas bitsandbytes compressed-tensors experts_int8 fbgemm_fp8 fp8
    gguf gptq gptq_bitblas gptq_marlin gptq_marlin_24 hqq humming inc ipex marlin modelopt modelopt_fp4
    modelopt_mixed modelopt_mxfp8 moe_wna16 mxfp4 mxfp8 petit_nvfp4 ptpc_fp8 quark rtn torchao tpu_int8
    """.split()
)


class _Named(NamedTuple):
    """A name that was written, its position, and how to replace it."""

    value: str
    where: str
    start: int
    end: int
    renamed: Callable[[str], list[Edit]]


def named_problems(args: ReadArguments, release: Version) -> Iterator[Problem]:
    """Back ends and quantisations that are misspelt, gone, or not known here."""
    for named in _named(args, "attention-backend", "attention_backend", VARIABLE):
        if named.value.lower() != "auto":
            yield from _backend(named, release)
    for named in _named(args, "quantization", "quantization", ""):
        if named.value.lower() not in QUANTIZATIONS:
            yield _problem("quantization-unknown", named, _close(named.value.lower(), QUANTIZATIONS))


def _backend(named: _Named, release: Version) -> Iterator[Problem]:
    gone = BACKEND_GONE.get(named.value.upper())
    meant = re.sub(r"[-\s]+", "_", named.value.strip()).upper()
    if gone and release >= version(gone):
        yield _problem("backend-gone", named, "", until=gone)
    elif meant != named.value.upper() and _known_backend(meant):  # a name with dashes or blanks is not valid as written
        found = _problem("backend-misspelt", named, "", meant=meant)
        found.edits = named.renamed(meant)
        yield found
    elif not _known_backend(named.value):
        left = [name for name in BACKENDS if name not in BACKEND_GONE]
        yield _problem("backend-unknown", named, _close(named.value.upper(), left))


def _known_backend(name: str) -> bool:
    upper = name.upper()
    return upper in BACKENDS or (upper.isidentifier() and BACKEND_FAMILIES.search(upper) is not None)


def _close(name: str, known: Sequence[str]) -> str:
    return "".join(f"; did you mean {close}?" for close in get_close_matches(name, known, n=1, cutoff=0.6))


def _problem(name: str, named: _Named, close: str, **says: str) -> Problem:
    return Problem(name, named.start, named.end, {"value": named.value, "where": named.where, "close": close, **says})


def _named(args: ReadArguments, flag_name: str, key: str, variable: str) -> Iterator[_Named]:
    """The places where a name of that kind is written as plain text."""
    flag, setting = args.flag(flag_name), args.keys.get(key)
    said = args.found.environment.get(variable)
    if flag is not None and _is_name(flag.value):
        yield _Named(flag.value, f"--{flag_name}", flag.start, flag.stop, lambda new: _rewritten(flag, new))
    elif said is not None and _is_name(said.value):
        yield _Named(said.value, variable, said.start, said.end, lambda new: [])
    if setting is not None and _is_name(setting.value):
        yield _Named(setting.value, f"{key} of the drafter", setting.start, setting.end, setting.set)


def _is_name(value: Any) -> bool:
    """Whether a value is written in full, rather than filled in by a shell."""
    return isinstance(value, str) and bool(value.strip()) and "$" not in value and "<" not in value


def _rewritten(flag: Flag, new: str) -> list[Edit]:
    if flag.member is not None:
        return set_value(flag.member, new)
    return [Edit(flag.word.start, flag.word.end, flag.word.anew(new))] if flag.word is not None else []
