"""Names of kernels in a command, the target's and the drafter's: attention back ends and quantisations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from augury.config.versions import Version, version
from augury.tools.doctor.arguments import Arguments, Flag
from augury.tools.doctor.found.places import Edit, set_value
from augury.tools.doctor.kernel_names import (
    BACKEND_GONE,
    backend_spelt,
    close_backend,
    close_quantization,
    known_backend,
    known_quantization,
)
from augury.tools.doctor.problems import Problem

VARIABLE = "VLLM_ATTENTION_BACKEND"


class _Named(NamedTuple):
    """A name that was written, where, and how to write another there."""

    value: str
    where: str
    start: int
    end: int
    renamed: Callable[[str], list[Edit]]


def named_problems(args: Arguments, release: Version) -> Iterator[Problem]:
    """Back ends and quantisations that are misspelt, gone, or not known here."""
    for named in _named(args, "attention-backend", "attention_backend", VARIABLE):
        if named.value.lower() != "auto":
            yield from _backend(named, release)
    for named in _named(args, "quantization", "quantization", ""):
        if not known_quantization(named.value):
            yield _problem("quantization-unknown", named, close_quantization(named.value))


def _backend(named: _Named, release: Version) -> Iterator[Problem]:
    gone = BACKEND_GONE.get(named.value.upper())
    meant = backend_spelt(named.value)
    if gone and release >= version(gone):
        yield _problem("backend-gone", named, None, until=gone)
    elif meant is not None:
        found = _problem("backend-misspelt", named, None, meant=meant)
        found.edits = named.renamed(meant)
        yield found
    elif not known_backend(named.value):
        yield _problem("backend-unknown", named, close_backend(named.value))


def _problem(name: str, named: _Named, close: str | None, **says: str) -> Problem:
    hint = f"; did you mean {close}?" if close else ""
    return Problem(name, named.start, named.end, {"value": named.value, "where": named.where, "close": hint, **says})


def _named(args: Arguments, flag_name: str, key: str, variable: str) -> Iterator[_Named]:
    """Wherever a name of that kind is written as plain text."""
    flag, setting = args.flag(flag_name), args.keys.get(key)
    said = args.found.environment.get(variable)
    if flag is not None and _is_name(flag.value):
        yield _Named(flag.value, f"--{flag_name}", flag.start, flag.stop, lambda new: _rewritten(flag, new))
    elif said is not None and _is_name(said.value):
        yield _Named(said.value, variable, said.start, said.end, lambda new: [])
    if setting is not None and _is_name(setting.value):
        yield _Named(setting.value, f"{key} of the drafter", setting.start, setting.end, setting.set)


def _is_name(value: Any) -> bool:
    """A text that stands there in full, rather than one that a shell fills in."""
    return isinstance(value, str) and bool(value.strip()) and "$" not in value and "<" not in value


def _rewritten(flag: Flag, new: str) -> list[Edit]:
    if flag.member is not None:
        return set_value(flag.member, new)
    return [Edit(flag.word.start, flag.word.end, flag.word.anew(new))] if flag.word is not None else []
