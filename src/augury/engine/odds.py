"""How likely a draft's tokens are to be accepted, position by position: of one request, leaning on everyone's.

A position's chance is conditional: given that all before it were accepted. A request's own record fades with its
drafts, so that it follows the text; where it says little, its tenant's record speaks, and behind that the engine's. All
records are lines of one table, so that a step of many requests is entered and asked in a few operations.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from augury.kernels.budget_numba import enter_drafts, reach_of

Floats = np.ndarray
Ints = np.ndarray
FIRST = 0.6  # before anything was drafted
TENANTS = 256  # that have a record; later ones share the engine's


class Trust(NamedTuple):
    """How far records are trusted."""

    own_fades: float  # with every draft that is entered
    shared_fades: float
    lean: float  # drafts a record must hold to count as much as the one behind it


# Copied text comes in runs: the last few drafts of a request say most about its next. A drafter with weights guesses
# about as well all through a text: few drafts say little there. (Measured on recorded drafts; docs/LOG.md, 2026-11-19.)
IN_RUNS = Trust(own_fades=0.94, shared_fades=0.98, lean=1.0)
STEADY = Trust(own_fades=0.97, shared_fades=0.99, lean=10.0)


class Odds:
    """Tried and accepted drafts by position, of slots and of tenants; line 0 of the tenants is everyone's."""

    def __init__(self, slots: int, positions: int, trust: Trust = IN_RUNS) -> None:
        self.trust = trust
        self._own = np.zeros((slots, 2, positions))
        self._shared = np.zeros((TENANTS + 1, 2, positions))
        self._tenants: dict[str, int] = {}
        self._tenant_of = np.zeros(slots, dtype=np.int64)

    def seat(self, slot: int, tenant: str) -> None:
        """A request takes a slot: its own record begins."""
        self._own[slot] = 0
        if tenant not in self._tenants and len(self._tenants) < TENANTS:
            self._tenants[tenant] = len(self._tenants) + 1
        self._tenant_of[slot] = self._tenants.get(tenant, 0)

    def see(self, slots: Ints, depth: Ints, accepted: Ints) -> None:
        """Enter one draft of each of these slots: all positions up to the first that failed were tried."""
        fades = self.trust.own_fades, self.trust.shared_fades
        enter_drafts(self._own, self._shared, self._tenant_of, slots, depth, accepted, *fades)

    def reach(self, slots: Ints) -> Floats:
        """The chance that each position of a draft is reached and accepted, falling, [requests, positions]."""
        return reach_of(self._own, self._shared, self._tenant_of, slots, FIRST, self.trust.lean)  # type: ignore[no-any-return]
