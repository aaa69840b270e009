"""The coupled rule's name, and how vLLM's samplers pass it on."""

from __future__ import annotations

RULE = "coupled"  # the value of `rejection_sample_method` that the hooks add


class DoesNotFit(Exception):
    """A hook found something else than what it was written for."""


class Coupled:
    """Stands where vLLM keeps a yes or no, and travels with it to the function that verifies."""

    def __bool__(self) -> bool:
        """As vLLM reads it."""
        return True


COUPLED = Coupled()
