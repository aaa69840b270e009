"""How much reading one text may cause: variables that double each other would otherwise fill the memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from augury.config.errors import ConfigError

MOST = 2_000_000  # letters that variables may add to a text, as many as a file may have
MOST_COMMANDS = 2_000  # in one text; each is held against everything that is known


class Allowance:
    """What is left of it."""

    def __init__(self, most: int = MOST) -> None:
        self.left = most

    def spend(self, letters: int) -> None:
        """Take some of it; a ConfigError when it is used up."""
        self.left -= letters
        if self.left < 0:
            raise ConfigError(
                f"the variables of this text add more than {MOST:,} letters to it; write the commands out, or look at "
                "them one by one."
            )


_current: ContextVar[Allowance | None] = ContextVar("allowance", default=None)


@contextmanager
def one_text() -> Iterator[None]:
    """All that is read in here shares one allowance."""
    token = _current.set(Allowance())
    try:
        yield
    finally:
        _current.reset(token)


def allowance() -> Allowance:
    """The allowance of the text that is being read; outside of any, a new one."""
    return _current.get() or Allowance()
