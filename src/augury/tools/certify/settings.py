"""The sampling settings at which plain decoding and speculation are compared."""

from __future__ import annotations

from typing import Any, NamedTuple


class SamplingSetting(NamedTuple):
    """Sampling parameters with a name."""

    name: str
    params: dict[str, Any]


GREEDY = SamplingSetting("greedy", {"temperature": 0.0})
SETTINGS = (
    GREEDY,
    SamplingSetting("T=0.7", {"temperature": 0.7}),
    SamplingSetting(
        "T=1 top-p penalties",
        {
            "temperature": 1.0,
            "top_p": 0.9,
            "repetition_penalty": 1.1,
            "frequency_penalty": 0.2,
            "presence_penalty": 0.1,
        },
    ),
)
