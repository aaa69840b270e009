"""Fields that ask for something that is not done here: refused by name, never ignored."""

from __future__ import annotations

from typing import Any

from augury.serve.errors import ApiError

BEAMS = "beam search is not done here; leave it out, or ask for n sampled answers"
# Each with the values that ask for nothing.
FIELDS: dict[str, tuple[tuple[Any, ...], str]] = {
    "use_beam_search": ((None, False), BEAMS),
    "length_penalty": ((None, 1, 1.0), BEAMS),
    "early_stopping": ((None, False), BEAMS),
    "best_of": ((None, 1), "it is not supported; leave it out, or ask for n"),
    "functions": ((None, []), "OpenAI has replaced it; use tools"),
    "function_call": ((None, "auto", "none"), "OpenAI has replaced it; use tool_choice"),
}


def check_unsupported(extra: dict[str, Any]) -> None:
    """Refuse what a request asks for beyond what there is."""
    for name, (nothing, why) in FIELDS.items():
        if name in extra and extra[name] not in nothing:
            raise ApiError(400, f"{name}: {why}.", name)
