"""How much reading one text may cause: variables that double each other would otherwise fill the memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from augury.config.errors import ConfigError

MOST = 2_000_000  # letters that variables may add to a text, as many as a file may have
MOST_COMMANDS = 2_000  # in one text; each is compared with everything that is known

_left: ContextVar[int | None] = ContextVar("left", default=None)


@contextmanager
def one_text() -> Iterator[None]:
    """A context in which everything that is read shares one allowance."""
    token = _left.set(MOST)
    try:
        yield
    finally:
        _left.reset(token)


def spend(letters: int) -> None:
    """Take some of the text's allowance; a ConfigError when it is used up."""
    left = _left.get()
    if left is None:
        return
    _left.set(left - letters)
    if left < letters:
        raise ConfigError(
            f"the variables of this text add more than {MOST:,} letters to it; write the commands out, or look at "
            "them one by one."
        )
