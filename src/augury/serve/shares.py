"""Places that all keys share: half are reserved in equal parts, one per key; the rest are first come, first served.

So a key that takes all it can get leaves every other key its part.
"""

from __future__ import annotations

from collections.abc import Mapping


class Shares:
    """How many places each of several keys may hold; one key alone, or a server without keys, may hold all."""

    def __init__(self, places: int, keys: int = 1) -> None:
        self.places = places
        self.part = places // 2 // keys if keys > 1 else 0  # reserved for each key
        self.common = places - keys * self.part

    def fit(self, held: Mapping[str, int], key: str, more: int) -> bool:
        """Whether a key may take `more` places, given what each key holds now."""
        then = {**held, key: held.get(key, 0) + more}
        return sum(max(0, number - self.part) for number in then.values()) <= self.common

    def why(self, held: Mapping[str, int], key: str, more: int, what: str) -> str:
        """The message of a refusal."""
        if not self.part:
            return f"{sum(held.values())} {what} and {more} more would exceed the limit of {self.places}; try again."
        own = held.get(key, 0)
        return f"{own} {what} for this key and {more} more would exceed its share of {self.places}; try again."
