"""What goes wrong between ranks."""

from __future__ import annotations


class RanksLost(RuntimeError):
    """A rank is gone or out of step: the engine ends with it, because no pass can be finished any more."""
