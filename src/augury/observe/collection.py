"""Contexts in which no garbage is collected, or the objects that exist already are not visited."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_under_way = False  # a set_aside has frozen objects
_others = False  # someone else has: kept here, as Python counts frozen objects by walking all of them, 50 ms and more


@contextmanager
def uncollected(lasting: bool = False) -> Iterator[None]:
    """Pause garbage collection, for work that makes many objects: each collection would visit all of them so far.

    If `lasting`, they count as old at once, so that the next collection of young objects does not visit them either.
    Importing torch and building an engine take a tenth less time this way.
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
    """Keep collections from visiting the objects that exist now, which count as old afterwards.

    For work that may leave much garbage, as a compiler does.
    """
    global _under_way, _others
    ours = not _under_way and not _others and not gc.get_freeze_count()
    _others = not _under_way and not ours  # to unfreeze ours would unfreeze theirs, too
    if ours:
        gc.freeze()
        _under_way = True
    try:
        yield
    finally:
        if ours:
            gc.unfreeze()
            _under_way = False
