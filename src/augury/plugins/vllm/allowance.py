"""What a request or an operator said about drafts, read so that no value of theirs can stop an engine."""

from __future__ import annotations

import logging
import math
from typing import Any

logger = logging.getLogger("vllm.augury")
KEY = "num_speculative_tokens"  # in a request's vllm_xargs
ROW_COST = "AUGURY_ROW_COST"  # what another row adds to a pass, as a share of the pass
FREE = 0.0  # a row is taken to cost nothing unless stated otherwise: then only a request's own number counts


def asked(sampling_params: Any, most: int) -> int | None:
    """How many tokens a request wants drafted, as far as the server drafts them; None if it says nothing we can read.

    The scheduler runs for all requests at once, so a value that is no number is ignored: `vllm_xargs` may hold any
    text, number or list of them, and vLLM has accepted the request by now.
    """
    extra = getattr(sampling_params, "extra_args", None)
    said = extra.get(KEY) if isinstance(extra, dict) else None
    # Of texts only short ones: Python refuses to read very long numbers, and no draft has a million tokens.
    if isinstance(said, str) and len(said) <= 6 and said.isascii() and said.isdigit():
        said = int(said)
    if isinstance(said, bool) or not isinstance(said, int | float) or said != said:  # the last is a NaN
        return None
    return int(max(0, min(said, most)))


def row_cost(said: str | None) -> float:
    """The cost that the environment names; free, with a line in the log, where that is no share of a pass."""
    try:
        cost = float(said or FREE)
    except ValueError:
        cost = math.nan
    if math.isfinite(cost) and cost >= 0:
        return cost
    logger.warning("%s=%s is not a share of a pass such as 0.02; rows are taken to cost nothing.", ROW_COST, said)
    return FREE
