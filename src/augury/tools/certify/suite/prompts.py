"""Prompts of the suites: beginnings to be continued, since a question that is sent as plain text may get no answer."""

from __future__ import annotations

LINE_WORDS = 18  # per line of the logbook
ENDINGS = (
    "The same entries once more, word for word:\nDay 1:",
    "The next entry of the logbook:\nDay",
    "Ships that went by, day after day: on day 1",
)


def logbook(words: int, ending: str) -> str:
    """A logbook of about so many words and the beginning of what follows: long, and similar from line to line."""
    days = range(1, max(1, words // LINE_WORDS) + 1)
    return "\n".join([*map(_entry, days), ending])


def _entry(day: int) -> str:
    wind = ("north", "east", "south", "west")[day * 7 % 4]
    return f"Day {day}: the lamp was lit at dusk, the wind came from the {wind}, and {day * 13 % 9} ships went by."


PROMPTS = (
    logbook(72, ENDINGS[0]),
    "Count from one to twenty in words: one, two, three, four, one, two, three,",
    "The quick brown fox jumps over the lazy dog, and the quick brown fox jumps again. The quick",
    '{"name": "Ada", "age": 36, "city": "London", "wife": {"name": "Ada", "age": 36',
    "The sky is blue because",
    "Once upon a time there was a lighthouse keeper who found a letter. The letter",
)
