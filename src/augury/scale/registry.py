"""Routers of this process by deployment, for the ingress. Apart from ray_router.py, which Ray copies by value."""

from __future__ import annotations

from typing import Protocol


class Names(Protocol):
    """A list of the replicas."""

    def names(self) -> list[str]:
        """Those that take requests now."""
        ...


_ROUTERS: dict[str, Names] = {}


def register(deployment: str, router: Names) -> None:
    """Be found."""
    _ROUTERS[deployment] = router


def names_of(deployment: str) -> list[str]:
    """The replicas of a deployment, none before its router is there."""
    return _ROUTERS[deployment].names() if deployment in _ROUTERS else []
