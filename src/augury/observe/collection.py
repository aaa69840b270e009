"""Times in which no garbage is collected."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """No collections meanwhile, for work that makes many objects that stay: each collection would look at all so far.

    Importing torch and building an engine take a tenth less time so.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


@contextmanager
def set_aside() -> Iterator[None]:
    """Collections meanwhile do not look at what is there now: for work that may leave much garbage, as a compiler."""
    ours = not gc.get_freeze_count()  # somebody else's would be taken out with ours
    if ours:
        gc.freeze()
    try:
        yield
    finally:
        if ours:
            gc.unfreeze()
