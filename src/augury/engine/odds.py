"""How likely a draft's tokens are to be accepted, position by position: of one request, leaning on everyone's.

A position's chance is conditional: given that all before it were accepted. A request's own record fades within a few
steps, so that it follows the text; where it is silent, its tenant's record speaks, and behind that the engine's. All
records are lines of one table, so that a step of many requests is entered and asked in a few operations.
"""

from __future__ import annotations

import numpy as np

from augury.kernels.budget_numba import enter_drafts, reach_of

Floats = np.ndarray
Ints = np.ndarray
OWN_FADES, SHARED_FADES = 0.94, 0.98  # with every draft that is entered
LEAN = 1.0  # drafts a record must hold to count as much as the one behind it
FIRST = 0.6  # before anything was drafted
TENANTS = 256  # that have a record; later ones share the engine's


class Odds:
    """Tried and accepted drafts by position, of slots and of tenants; line 0 of the tenants is everyone's."""

    def __init__(self, slots: int, positions: int) -> None:
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
        enter_drafts(self._own, self._shared, self._tenant_of, slots, depth, accepted, OWN_FADES, SHARED_FADES)

    def reach(self, slots: Ints) -> Floats:
        """The chance that each position of a draft is reached and accepted, falling, [requests, positions]."""
        return reach_of(self._own, self._shared, self._tenant_of, slots, FIRST, LEAN)  # type: ignore[no-any-return]
