"""What was not checked for lack of files, and how to supply them; "clean" covers only what was checked."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from augury.config.facts import ModelFacts
from augury.methods.registry import METHODS
from augury.tools.doctor.arguments import ReadArguments

HANDED_ON = re.compile(
    r"^\$+(?:[@*]|\{[@*]\}|\{\w+\[[@*]\]\})$"
)  # "$@" or "${ARGS[@]}"; compose files double the dollar


class Unchecked(NamedTuple):
    """One thing that was not checked, why, and how to have it checked."""

    what: str
    why: str
    how: str


def unchecked(
    args: ReadArguments,
    facts: Mapping[str, Any],
    target: ModelFacts | None,
    draft: ModelFacts | None,
    served: str | None,
) -> tuple[Unchecked, ...]:
    """What is unchecked in one command that serves the target `served`; if it does not speculate, whether it might."""
    if not args.speculates:
        return (*_hidden(args), *_own(args, target))
    return tuple(_open(args, facts, target, draft, served))


def _hidden(args: ReadArguments) -> Iterator[Unchecked]:
    if any(HANDED_ON.search(word.text) for word in args.found.words):
        yield Unchecked(
            "arguments that are handed on where this is run, and may speculate",
            "nothing in this file says what they hold",
            "lint the finished command as well",
        )


def _own(args: ReadArguments, target: ModelFacts | None) -> Iterator[Unchecked]:
    """The settings inside a checkpoint in the speculators format, for which vLLM serves its target and speculates."""
    if target is None and "speculator" in (args.target or "").lower() and args.found.program:
        yield Unchecked(
            "the speculation that the checkpoint itself sets: method, K and target",
            f"the files of {args.target} are not on this machine",
            "--target DIR",
        )


def _open(
    args: ReadArguments,
    facts: Mapping[str, Any],
    target: ModelFacts | None,
    draft: ModelFacts | None,
    served: str | None,
) -> Iterator[Unchecked]:
    card = METHODS.get(facts["method"] or "")
    inside = card is not None and card.weights == "target" and not facts["model"]
    if target is None:
        yield _of_target(served, facts, inside, card is not None and not card.has_weights)
    if draft is None and facts["model"] and (card is None or card.has_weights):
        yield Unchecked(
            "whether the drafter fits: vocabulary, width, trained depth, context, quantisation",
            f"the files of {facts['model']} are not on this machine",
            "--drafter DIR",
        )
    if not args.readable and not any(problem.name == "json-has-variable" for problem in args.problems):
        yield Unchecked(
            "what the configuration means", "it cannot be read as it stands", "correct it and lint it again"
        )
    elif args.partial or not args.readable:
        yield Unchecked(
            "keys that are filled in where this is run",
            "nothing in this file sets the variables",
            "lint the finished command as well",
        )


def _of_target(name: str | None, facts: Mapping[str, Any], inside: bool, by_lookup: bool) -> Unchecked:
    """What only the target's config.json would tell, apart from what its name already told."""
    left = []
    if inside:
        left.append("its MTP layers and their depth")
    elif not by_lookup:
        left.append("its vocabulary and width")
    if facts.get("target_hybrid") is None:
        left.append("whether it is a hybrid or multimodal model")
    left.append("its context and quantisation")
    why = f"the files of {name} are not on this machine" if name else "the command names no target"
    family = facts.get("named_family")
    told = f"; its name says {family}" if family else ""
    return Unchecked(f"the target: {', '.join(left)}", why + told, "--target DIR")
