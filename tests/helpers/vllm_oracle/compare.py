"""Both sides' answers next to each other: what agrees, what differs, and the verdict on each difference."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from vllm_oracle.cases import Case
from vllm_oracle.sides import Verdict, doctor, ours


class Explained(NamedTuple):
    """A difference that stays, by the names of its cases, with the verdict."""

    tool: str  # config check, doctor, or both
    names: str
    verdict: str


LATER = "vLLM's configuration takes it and the server stops later: "
EXPLAINED = (
    Explained("both", r".*/wide-eagle3/.*", LATER + "the head's weights have another width than the target's states"),
    Explained("both", r"length/medusa/(5|8|9|20)", LATER + "K heads are built and the file has weights for four"),
    Explained("both", r"family/deepseek-none/.*", LATER + "the checkpoint has no layers to draft with"),
    Explained("both", r"alone/extract_hidden_states/3/.*", LATER + "the proposer asserts K = 1"),
    Explained("doctor", r"alone/extract_hidden_states/1/.*", "vLLM starts, and without a KV connector saves nothing"),
    Explained("both", r"word/(nodots|a/b.c|)/custom_class", LATER + "the class is imported by the worker"),
    Explained("both", r"word//ngram", "Augury is stricter: an empty model is a slip, and vLLM ignores it with ngram"),
    Explained("both", r"length/ngram/True", "Augury is stricter: vLLM reads true as K = 1"),
    Explained("both", r"key/num_speculative_tokens_per_batch_size=\[\[.*/suffix", LATER + "the old runner asserts K"),
    Explained("doctor", r"key/num_speculative_tokens_per_batch_size=\[\]/suffix", "an empty table counts as a table"),
    Explained(
        "both",
        r"rule/parallel_drafting\+disable_padded_drafter_batch/draft_model",
        LATER + "parallel drafts run on the old runner, whose proposer raises NotImplementedError",
    ),
    Explained("doctor", r"word/\.\.?/.*", "the doctor reads files of other machines: a path may well exist there"),
    Explained("doctor", r"key/(attention_backend='FLASH_ATN'|quantization='fp88')/.*", "a warning: plugins add names"),
)


# Of configurations drawn at random the names say nothing: tool, words of both answers, verdict.
DRAWN = (
    Explained("both", r".*(to another target|hidden-size-differs).*", LATER + "the head has another width"),
    Explained("both", r".*must be 1: the method drafts nothing.*", LATER + "the proposer asserts K = 1"),
    Explained("both", r".*must name the layers to save.*", LATER + "the proposer asks for the layers"),
    Explained("doctor", r".*hidden-states-need-connector.*", "vLLM starts, and without a KV connector saves nothing"),
    Explained("both", r".*must be a dotted import path.*", LATER + "the class is imported by the worker"),
    Explained("both", r".*=True must be a (whole )?number.*", "Augury is stricter: vLLM reads true as 1"),
    Explained("both", r".*cannot (combine it with|change K by).*", LATER + "the old runner asserts K"),
    Explained("both", r".*not implemented (it )?for draft_model.*", LATER + "the old runner has not implemented it"),
    Explained("doctor", r"refused: .*Unknown (attention backend|quantization).*", "a warning: plugins add names"),
    Explained("both", r".*at most the checkpoint's \d+ heads.*", LATER + "K heads are built, the file has fewer"),
    Explained("both", r".*(no-mtp-layers|MTP).*", LATER + "the checkpoint has no layers to draft with"),
)


class Difference(NamedTuple):
    """One case on which the two sides disagree."""

    tool: str
    case: str
    what: str  # accepted, method, tokens or slots
    vllm: str
    augury: str
    verdict: str  # empty: nobody has looked at it yet


def differing(theirs: Verdict, mine: Verdict) -> str:
    """The first thing on which two answers differ; empty when there is none."""
    if theirs["accepted"] != mine["accepted"]:
        return "accepted"
    asked = [name for name in ("method", "tokens", "slots") if theirs["accepted"] and name in theirs and name in mine]
    return next((name for name in asked if theirs[name] != mine[name]), "")


def differences(
    cases: Iterable[Case], theirs: Mapping[str, Verdict], release: str, models: Path
) -> tuple[list[Difference], dict[str, int]]:
    """What differs, and how many questions each tool was asked; a whole command is the doctor's alone."""
    found, asked = [], {"config check": 0, "doctor": 0}
    for case in cases:
        for tool, ask in (("config check", ours), ("doctor", doctor)):
            if case.engine and tool == "config check":
                continue
            asked[tool] += 1
            mine = ask(case, release, models)
            if what := differing(theirs[case.name], mine):
                said = (shown(theirs[case.name], models), shown(mine, models))
                found.append(Difference(tool, case.name, what, *said, verdict_on(tool, case.name, " | ".join(said))))
    return found, asked


def shown(answer: Verdict, models: Path) -> str:
    """An answer in a few words."""
    if answer["accepted"]:
        return " ".join(str(answer[name]) for name in ("method", "tokens") if name in answer) or "accepted"
    return "refused: " + str(answer["words"]).replace(f"{models}/", "@")[:120]


def verdict_on(tool: str, case: str, words: str = "") -> str:
    """What is known of a difference: by the name of its case, or by the words of both answers where it was drawn."""
    known, asked = (DRAWN, words) if case.startswith("drawn/") else (EXPLAINED, case)
    fits = (one for one in known if one.tool in (tool, "both") and re.fullmatch(one.names, asked))
    return next((one.verdict for one in fits), "")


def summary(found: list[Difference], asked: Mapping[str, int]) -> dict[str, Any]:
    """The figures."""
    counts = {tool: sum(one.tool == tool for one in found) for tool in asked}
    return {
        "asked": dict(asked),
        "agree": {tool: asked[tool] - counts[tool] for tool in asked},
        "share": {tool: round(1 - counts[tool] / asked[tool], 4) for tool in asked},
        "without_verdict": sum(not one.verdict for one in found),
    }


def table(found: list[Difference]) -> str:
    """The differences as Markdown, a line for each verdict."""
    lines = ["| cases | tool | vLLM | Augury | verdict |", "|---|---|---|---|---|"]
    groups: dict[tuple[str, str, bool], list[Difference]] = {}
    for one in found:
        groups.setdefault((one.verdict, one.case.split("/")[0], one.augury.startswith("refused")), []).append(one)
    for (verdict, _, refused), members in groups.items():
        tools = ", ".join(sorted({one.tool for one in members}))
        names = sorted({one.case for one in members})
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        sides = ("takes it", "refuses it") if refused else ("refuses it", "takes it")
        lines.append(f"| `{names[0]}`{more} | {tools} | {sides[0]} | {sides[1]} | {verdict or '**none yet**'} |")
    return "\n".join(lines)
