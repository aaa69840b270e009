"""The chance that a request's draft tokens are accepted, by position, with other requests' records as a prior.

A position's chance is conditional on all before it being accepted. A request's own record decays with its drafts, so
that it follows the text; while it holds little, its tenant's record counts, and behind that the engine's. All records
are rows of one table, so that a step of many requests takes a few operations.
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
    """How fast records decay, and how much a prior weighs."""

    own_fades: float  # decay with every recorded draft
    shared_fades: float
    lean: float  # drafts a record must hold to weigh as much as its prior


# Copied text comes in runs: the last few drafts of a request say most about its next. A drafter with weights guesses
# about as well all through a text: few drafts say little there. (Measured on recorded drafts; docs/LOG.md, 2026-11-19.)
IN_RUNS = Trust(own_fades=0.94, shared_fades=0.98, lean=1.0)
STEADY = Trust(own_fades=0.97, shared_fades=0.99, lean=10.0)


class Odds:
    """Tried and accepted drafts by position, of slots and of tenants; row 0 of the tenants is the engine's."""

    def __init__(self, slots: int, positions: int, trust: Trust = IN_RUNS) -> None:
        self.trust = trust
        self._own = np.zeros((slots, 2, positions))
        self._shared = np.zeros((TENANTS + 1, 2, positions))
        self._tenants: dict[str, int] = {}
        self._tenant_of = np.zeros(slots, dtype=np.int64)

    def seat(self, slot: int, tenant: str) -> None:
        """Begin the record of a request that takes a slot."""
        self._own[slot] = 0
        if tenant not in self._tenants and len(self._tenants) < TENANTS:
            self._tenants[tenant] = len(self._tenants) + 1
        self._tenant_of[slot] = self._tenants.get(tenant, 0)

    def see(self, slots: Ints, depth: Ints, accepted: Ints) -> None:
        """Record one draft of each of these slots: all positions up to the first rejected one were tried."""
        fades = self.trust.own_fades, self.trust.shared_fades
        enter_drafts(self._own, self._shared, self._tenant_of, slots, depth, accepted, *fades)

    def reach(self, slots: Ints) -> Floats:
        """The chance that each position of a draft is reached and accepted, [requests, positions], decreasing."""
        return reach_of(self._own, self._shared, self._tenant_of, slots, FIRST, self.trust.lean)  # type: ignore[no-any-return]
