"""Places that all keys use: half are set aside in equal parts, one for each key; the rest go by order of arrival.

So a key that takes all it can get leaves every other key its part.
"""

from __future__ import annotations

from collections.abc import Mapping


class Shares:
    """How many places each of several keys may hold; one key alone, or a server without keys, may hold all."""

    def __init__(self, places: int, keys: int = 1) -> None:
        self.places = places
        self.part = places // 2 // keys if keys > 1 else 0  # set aside for each key
        self.common = places - keys * self.part

    def fit(self, held: Mapping[str, int], key: str, more: int) -> bool:
        """Whether a key may have more places, beside those that each key holds now."""
        then = {**held, key: held.get(key, 0) + more}
        return sum(max(0, number - self.part) for number in then.values()) <= self.common

    def why(self, held: Mapping[str, int], key: str, more: int, what: str) -> str:
        """What a refusal says."""
        if not self.part:
            return f"{sum(held.values())} {what} and {more} more would exceed the limit of {self.places}; try again."
        own = held.get(key, 0)
        return f"{own} {what} for this key and {more} more would exceed its share of {self.places}; try again."
