"""K by batch size: the table of num_speculative_tokens_per_batch_size."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from augury.config.errors import ConfigError

NAME = "speculative_config.num_speculative_tokens_per_batch_size"


@dataclass(frozen=True, slots=True)
class Schedule:
    """K by batch size: `tokens[i]` from `starts[i]` requests on; gaps and the tail keep the K before them."""

    starts: tuple[int, ...]
    tokens: tuple[int, ...]

    @classmethod
    def read(cls, entries: Sequence[Sequence[int]], most: int) -> Schedule:
        """Check the ranges, in any order, and cap every K at `most`."""
        if not entries:
            raise ConfigError(
                f"{NAME} must not be empty; write for example [[1, 16, 4], [17, 256, 0]], or leave it out."
            )
        ranges = sorted(_entry(entry) for entry in entries)
        if ranges[0][0] != 1:
            raise ConfigError(f"{NAME} must start at 1, its first range starts at {ranges[0][0]}; lower that.")
        for (_, end, _), (start, *_) in pairwise(ranges):
            if start <= end:
                raise ConfigError(
                    f"{NAME} ranges must be non-overlapping: one ends at {end}, the next starts at {start}."
                )
        return cls(tuple(r[0] for r in ranges), tuple(min(r[2], most) for r in ranges))

    def at(self, batch: int) -> int:
        """K for a step with this many requests."""
        return self.tokens[bisect_right(self.starts, max(batch, 1)) - 1]

    def table(self, max_num_seqs: int) -> list[int]:
        """K for every batch size up to a limit; index 0 is unused, as in vLLM."""
        return [0, *(self.at(batch) for batch in range(1, max_num_seqs + 1))]


def _entry(entry: Sequence[int]) -> tuple[int, int, int]:
    if len(entry) != 3:
        raise ConfigError(f"{NAME} entry {list(entry)} must be a 3-item sequence [first, last, K].")
    first, last, tokens = entry
    if first < 1 or last < 1:
        raise ConfigError(f"{NAME} entry {list(entry)}: batch sizes must be positive; count requests from 1.")
    if first > last:
        raise ConfigError(f"{NAME} entry {list(entry)}: the range is backwards; write [{last}, {first}, {tokens}].")
    if tokens < 0:
        raise ConfigError(f"{NAME} entry {list(entry)}: K values must be >= 0; write 0 to pause drafting.")
    return first, last, tokens
