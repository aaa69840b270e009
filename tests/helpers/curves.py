"""A cost curve made by hand, for the tests that need one."""

from __future__ import annotations

from typing import Any

from augury.tools.advise.curve import FORMAT


def curve_file(
    contexts: tuple[int, ...] = (64, 512),
    requests: tuple[int, ...] = (1, 4),
    rows: tuple[int, ...] = (1, 2, 4, 8),
    **extra: Any,
) -> dict[str, Any]:
    """A curve in which a step costs 10 ms, 2 a row, and 1 for every 100 tokens behind each request."""

    def point(c: int, r: int, n: int) -> dict[str, Any]:
        ms = 10 + 2 * r * n + r * c / 100
        return {"context": c, "requests": r, "rows": n, "ms": ms, "low": 0.9 * ms, "high": 1.1 * ms, "count": 9}

    timed = {"ms": 0.5, "low": 0.4, "high": 0.6, "count": 9}
    drafting = [{"method": m, "tokens": 4, "requests": 1, **timed} for m in ("ngram", "suffix", "eagle3", "dflash")]
    whole = {
        "format": FORMAT, "model": {"name": "toy"}, "conditions": {}, "buckets": [],
        "steps": [point(c, r, n) for c in contexts for r in requests for n in rows], "reading": timed,
        "drafting": drafting,
    }  # fmt: skip
    return {**whole, **extra}
