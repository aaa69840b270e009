"""Sampling parameters that speculation refuses or ignores: in defaults, in a benchmark, in a program's requests."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from augury.config.facts import ModelFacts
from augury.tools.doctor.arguments import ReadArguments
from augury.tools.doctor.found.places import Node
from augury.tools.doctor.problems import Problem
from augury.tools.doctor.refused import anchor

GREEDY_BELOW = 1e-5  # min_p under this counts as none
STRUCTURED = ("structured_outputs", "guided_decoding")


def default_problems(args: ReadArguments, target: ModelFacts | None) -> Iterator[Problem]:
    """Sampling defaults that would apply to requests and that speculation refuses."""
    for name in ("override-generation-config", "extra-body"):
        flag = args.flag(name)
        if flag is not None:
            for parameter in _refused(args.object(name)):
                yield Problem("sampling-default", flag.start, flag.stop, {"parameter": parameter, "where": f"--{name}"})
    least = args.flag("min-p")  # of a benchmark's requests
    if least is not None and _refused({"min_p": _number(least.value)}):
        yield Problem("sampling-default", least.start, least.stop, {"parameter": "min_p", "where": "--min-p"})
    chosen = args.flag("generation-config")
    if target is not None and target.directory is not None and (chosen is None or chosen.value == "auto"):
        try:
            stored = json.loads((target.directory / "generation_config.json").read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return
        where = "the target's generation_config.json"
        for parameter in _refused(stored if isinstance(stored, dict) else {}):
            yield Problem("sampling-default", *anchor(args), {"parameter": parameter, "where": where})


def request_problems(args: ReadArguments) -> Iterator[Problem]:
    """Parameters of a program's SamplingParams(...) that speculation does not support."""
    for call in args.found.sampling:
        given = {member.name: member.node.value for member in call.members}
        for parameter in _refused(given):
            yield _asked(call, parameter, "sampling-request")
        for parameter in STRUCTURED:
            if given.get(parameter) is not None:
                yield _asked(call, parameter, "structured-request")
        if _number(given.get("min_tokens")) >= 1:
            yield _asked(call, "min_tokens", "min-tokens")
        if given.get("thinking_token_budget") is not None:
            yield _asked(call, "thinking_token_budget", "thinking-budget")


def _asked(call: Node, parameter: str, problem: str) -> Problem:
    """A problem placed at the keyword and its value."""
    member = call.member(parameter)
    assert member is not None
    place = call.origin.body.place(member.start, member.node.end)
    return Problem(problem, *place, {"parameter": parameter, "where": "SamplingParams"})


def _number(text: Any) -> float:
    if isinstance(text, bool):  # stands for a value that is known only at run time
        return 0.0
    try:
        return float(text)
    except (TypeError, ValueError):
        return 0.0


def _refused(given: Mapping[str, Any]) -> list[str]:
    least = given.get("min_p")
    found = ["min_p"] if isinstance(least, (int, float)) and _number(least) > GREEDY_BELOW else []
    return found + [name for name in ("logit_bias", "trace_decode_token_ids") if given.get(name)]
