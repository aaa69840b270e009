"""The card of `ngram`."""

from __future__ import annotations

from typing import Any

from augury.methods.bands import measured
from augury.methods.errors import problem
from augury.methods.notes import Note
from augury.methods.spec import Case, Change, LookUp, Method, Signs

LOOKUP_KEYS = ("prompt_lookup_max", "prompt_lookup_min", "prompt_lookup_match")
LOOKUP_BAND = measured(1.1, 1.3, 2.5, 4, "1.5-2.5 on code, 1.1-1.3 in chat", "operators' reports")
USUAL = 5  # vLLM's default for both bounds; where one is given, the other takes its value


def bounds(case: Case) -> Change:
    """Settle the shortest and the longest n-gram."""
    given = low, high = case.keys.get("prompt_lookup_min"), case.keys.get("prompt_lookup_max")
    low, high = low or high or USUAL, high or low or USUAL
    if low > high:
        raise problem(
            "prompt_lookup_min", low, f"must be <= prompt_lookup_max={high}; lower the first or raise the second"
        )
    says = Note("inferred", "prompt_lookup_max", f"{USUAL}, and prompt_lookup_min too: neither is given.")
    notes = (says,) if given == (None, None) else ()
    return Change({"prompt_lookup_min": low, "prompt_lookup_max": high}, notes)


def _words(config: Any) -> list[str]:
    latest = ["latest"] if config.prompt_lookup_match == "latest" else []
    return [f"n={config.prompt_lookup_min}-{config.prompt_lookup_max}", *latest]


LOOK_UP = LookUp(
    "augury.tools.replay.drafters:NgramWalker",
    starts=({"prompt_lookup_min": 2, "prompt_lookup_max": 4}, {"prompt_lookup_min": 3, "prompt_lookup_max": 5}),
    tokens=4,
    lengths=(1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16),
    words=_words,
)

NGRAM = Method(
    name="ngram",
    help="Looks up the last few tokens earlier in the request and guesses that what followed then follows now.",
    drafter="augury.drafters.ngram:NgramDrafter",
    keys=LOOKUP_KEYS,
    signs=Signs(stand_ins=("ngram", "[ngram]")),
    settle=bounds,
    vllm_async=False,
    vllm_new_runner=("0.29", "0.32"),
    band=LOOKUP_BAND,
    look_up=LOOK_UP,
)
