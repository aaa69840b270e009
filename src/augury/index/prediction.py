"""A text that a client expects as the answer, and how far into it the answer has got.

The answer is taken to begin where the expected text does, and to follow it. After a difference its place is looked for
again, by the last few tokens: close by one token will do, farther on it takes two, and anywhere else three. How long a
guess may be follows from how many tokens have agreed so far, and from what is left of an allowance for wrong guesses:
accepted tokens add to it, and so does, a little, every token of the answer. So a prediction that is all wrong costs a
fixed small share of the passes, however long the answer is.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence

LENGTHS = (0, 1, 2, 3, 5, 7, 11, 15)  # of a guess: with the token before it they fill passes, which come in a few sizes
LONGEST = LENGTHS[-1]
TAIL = 8  # last tokens that are compared
NEAR, FAR = 8, 64  # how far ahead one token, and two, tell the place
LOOKED_AT = 32  # places with the same two tokens, each way
OPENING = 3  # the beginning of the text counts as this many tokens that agree
ALLOWANCE = 8.0  # wrong tokens that may be guessed at first,
SHARE = 0.0625  # more for each token of the answer,
EARNED = 2.0  # and more for each that was accepted
MOST = 64.0  # a long success does not pay for a long failure


class PredictedText:
    """The text as tokens, with an index of its pairs; made once for all answers that are expected to follow it."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = list(tokens)
        self._pairs: dict[tuple[int, int], list[int]] | None = None  # where the text continues after each pair

    def after(self, pair: tuple[int, int], anchor: int) -> list[int]:
        """Places after a pair of tokens: those from `anchor` on, nearest first, then those before it."""
        if self._pairs is None:
            self._pairs = {}
            for place in range(2, len(self.tokens) + 1):
                self._pairs.setdefault((self.tokens[place - 2], self.tokens[place - 1]), []).append(place)
        places = self._pairs.get(pair, [])
        middle = bisect_left(places, anchor)
        return places[middle : middle + LOOKED_AT] + places[max(0, middle - LOOKED_AT) : middle][::-1]

    def agreement(self, place: int, tail: Sequence[int]) -> int:
        """How many of an answer's last tokens match those just before a place."""
        same = 0
        while same < min(place, len(tail)) and self.tokens[place - 1 - same] == tail[-1 - same]:
            same += 1
        return same

    def find(self, tail: Sequence[int], anchor: int) -> tuple[int, int]:
        """Where the text continues an answer that diverged from it at `anchor`, and how many tokens agree there.

        The longest match wins, then the place nearest ahead; (-1, 0) if there is no match.
        """
        best, most = -1, 0
        for place in self.after((tail[-2], tail[-1]), anchor) if len(tail) > 1 else ():
            same = self.agreement(place, tail)
            if same > most and same >= (2 if anchor <= place <= anchor + FAR else 3):
                best, most = place, same
        if most:
            return best, most
        close = self.tokens[anchor : anchor + NEAR]
        return (anchor + close.index(tail[-1]) + 1, 1) if tail and tail[-1] in close else (-1, 0)


class PredictionFollower:
    """Follows one answer through an expected text."""

    def __init__(self, expected: PredictedText) -> None:
        self.expected = expected
        self._place = 0  # the token that is expected next, or where the text was left
        self._lost = False
        self._run = OPENING  # tokens that have agreed in a row
        self._left = ALLOWANCE
        self._tail: deque[int] = deque(maxlen=TAIL)
        self._seen = bytearray(len(expected.tokens))  # 1: this token of the text is in the answer
        self._fresh: list[tuple[int, int]] = []  # (number in the last step, place) of tokens it covered first

    @property
    def sure(self) -> bool:
        """Whether enough tokens in a row agree that no other drafter is needed."""
        return not self._lost and self._run >= TAIL and self._place < len(self.expected.tokens)

    @property
    def accepted(self) -> int:
        """Tokens of the expected text that are in the answer."""
        return sum(self._seen)

    @property
    def rejected(self) -> int:
        """Tokens of the expected text that are not in the answer."""
        return len(self._seen) - self.accepted

    def judged(self, guessed: int, accepted: int) -> None:
        """Update the allowance for wrong guesses after a guess of `guessed` tokens was verified."""
        self._left = min(MOST, self._left + EARNED * accepted - (guessed - accepted))

    def follow(self, tokens: Sequence[int]) -> None:
        """Follow the tokens that a step added to the answer."""
        text, self._fresh = self.expected.tokens, []
        self._left = min(MOST, self._left + SHARE * len(tokens))
        for number, token in enumerate(tokens):
            self._tail.append(token)
            if not self._lost and self._place < len(text) and text[self._place] == token:
                self._see(number, self._place)
                self._place += 1
                self._run += 1
            else:
                self._lost, self._run = True, 0
        if self._lost:
            tail = list(self._tail)
            place, same = self.expected.find(tail, self._place)
            if place >= 0:
                self._place, self._run, self._lost = place, same, False
                for back in range(same):
                    self._see(len(tokens) - 1 - back, place - 1 - back)

    def _see(self, number: int, place: int) -> None:
        if not self._seen[place]:
            self._seen[place] = 1
            self._fresh.append((number, place))

    def unread(self, kept: int) -> None:
        """Uncount the last step's tokens past the first `kept`, because the answer ended before them."""
        for number, place in self._fresh:
            if number >= kept:
                self._seen[place] = 0

    def guesses(self, most: int) -> list[int]:
        """Up to `most` tokens predicted to come next."""
        if self._lost:
            return []
        length = LENGTHS[bisect_right(LENGTHS, max(0, min(most, 2 * self._run, self._left))) - 1]
        return self.expected.tokens[self._place : self._place + length]

    def outweighs(self, nodes: int) -> bool:
        """Whether its guesses are preferred to a drafter's draft of `nodes` nodes."""
        return self._run >= OPENING or nodes == 0
