"""Incremental detokenization, and stop strings in the text."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Decode = Callable[[list[int]], str]


class TextStream:
    """Turns one request's tokens into text piece by piece.

    A token may hold part of a character, and some tokenizers write a token differently after another, so the newest
    text is the difference between decoding a short window with and without the newest tokens. A window that ends in
    half a character waits for the rest.
    """

    def __init__(
        self, decode: Decode, context: Sequence[int], stop: Sequence[str] = (), keep_stop: bool = False
    ) -> None:
        self.text = ""
        self._decode = decode
        self._window = list(context[-5:])  # the end of the prompt, for tokenizers that look back
        self._shown = len(self._window)  # tokens of the window whose text is out
        self._stop = list(stop)
        self._keep_stop = keep_stop
        self._longest = max((len(s) for s in stop), default=0)
        self._ends = frozenset(s[-1:] for s in stop)

    def push(self, token: int, watch: bool = True) -> str | None:
        """Take one more token; returns the stop string that now ends the text, having cut the text there."""
        self._window.append(token)
        before = self._decode(self._window[: self._shown])
        after = self._decode(self._window)
        if len(after) <= len(before) or after.endswith("\ufffd"):
            return None
        fresh = len(self.text)
        self.text += after[len(before) :]
        self._window = self._window[self._shown :]
        self._shown = len(self._window)
        return self._cut(fresh) if watch and self._stop else None

    def flush(self) -> None:
        """Append what was held back as half a character."""
        if self._shown < len(self._window):
            before = self._decode(self._window[: self._shown])
            self.text += self._decode(self._window)[len(before) :]
            self._shown = len(self._window)

    def settled(self, finished: bool) -> int:
        """How many characters can be shown: a stop string that may still be forming is held back."""
        return len(self.text) if finished or not self._stop else max(0, len(self.text) - self._longest + 1)

    def _cut(self, fresh: int) -> str | None:
        """Find the stop string that ends first in the text from `fresh` on.

        Matching begins at its end: a search would try each place of a thousand characters again with every token, and
        strings that nearly match a text everywhere would delay all requests.
        """
        for end in range(fresh + 1, len(self.text) + 1):
            if self.text[end - 1] not in self._ends:
                continue
            for stop in self._stop:
                if self.text.endswith(stop, 0, end):
                    self.text = self.text[: end if self._keep_stop else end - len(stop)]
                    return stop
        return None
