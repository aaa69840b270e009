"""vLLM's progress bar of a batch: prompts done, and tokens a second in and out."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from augury.engine.request import Request


class ProgressBar:
    """The progress bar, if one is shown."""

    def __init__(self, bar: Any) -> None:
        self._bar = bar
        self._begun = time.perf_counter()
        self._read = self._written = 0

    def count(self, request: Request, tokens: int) -> None:
        self._written += tokens
        if request.finish_reason and self._bar is not None:
            self._read += request.prompt_len
            seconds = time.perf_counter() - self._begun
            speed = f"est. speed input: {self._read / seconds:.2f} toks/s, output: {self._written / seconds:.2f} toks/s"
            self._bar.postfix = speed
            self._bar.update(1)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


def progress_bar(total: int, wanted: bool | Callable[..., Any]) -> ProgressBar:
    """A progress bar, if one is wanted; `wanted` may be a callable that makes it."""
    if not wanted:
        return ProgressBar(None)
    from tqdm.auto import tqdm

    make = wanted if callable(wanted) else tqdm
    return ProgressBar(make(total=total, desc="Processed prompts", dynamic_ncols=True))
