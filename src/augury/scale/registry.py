"""This process's routers by deployment, for the ingress. Separate from ray_router.py, which Ray copies by value."""

from __future__ import annotations

from typing import Protocol


class Names(Protocol):
    """Anything that lists the replicas."""

    def names(self) -> list[str]:
        """Names of the replicas that take requests now."""
        ...


_ROUTERS: dict[str, Names] = {}


def register(deployment: str, router: Names) -> None:
    """Make a deployment's router known to `names_of`."""
    _ROUTERS[deployment] = router


def names_of(deployment: str) -> list[str]:
    """Names of a deployment's replicas; empty until its router has registered."""
    return _ROUTERS[deployment].names() if deployment in _ROUTERS else []
