"""Errors between ranks."""

from __future__ import annotations


class RanksLost(RuntimeError):
    """A rank has ended or is out of step: the engine stops, because no forward pass can complete any more."""
