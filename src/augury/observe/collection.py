"""Times in which no garbage is collected, or what there was before is left alone."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_under_way = False  # a set_aside that has frozen
_others = False  # somebody else has frozen: kept, because Python counts by walking all that is frozen, 50 ms and more


@contextmanager
def uncollected(lasting: bool = False) -> Iterator[None]:
    """No collections meanwhile, for work that makes many objects: each would look at all of them so far.

    What is `lasting` counts as old at once, so that the next collection of the young does not look at it either.
    Importing torch and building an engine take a tenth less time so.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            if lasting:
                with set_aside():
                    pass
            gc.enable()


@contextmanager
def set_aside() -> Iterator[None]:
    """Collections meanwhile do not look at what is there now, which counts as old afterwards.

    For work that may leave much garbage, as a compiler does.
    """
    global _under_way, _others
    ours = not _under_way and not _others and not gc.get_freeze_count()
    _others = not _under_way and not ours  # what they have put aside would be taken back with ours
    if ours:
        gc.freeze()
        _under_way = True
    try:
        yield
    finally:
        if ours:
            gc.unfreeze()
            _under_way = False
