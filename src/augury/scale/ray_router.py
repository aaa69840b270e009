"""Ray's side of routing: a request goes to the replica that the ingress has named. Imports Ray."""

from __future__ import annotations

from typing import Any

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from augury.scale.registry import register


class NamedReplicaRouter(RequestRouter):  # type: ignore[misc]  # Ray has no types
    """Sends a call to the replica named by its first argument; router.py has already chosen it."""

    def initialize_state(self, **_: Any) -> None:
        """Register with this process, for the ingress to find."""
        register(str(self._deployment_id), self)

    def names(self) -> list[str]:
        """Names of the replicas that take requests now."""
        return sorted(replica.unique_id for replica in self.curr_replicas)

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """The named replica, or all candidates if it has gone in the meantime."""
        name = pending_request.args[0] if pending_request is not None and pending_request.args else None
        named = [replica for replica in candidate_replicas if replica.replica_id.unique_id == name]
        return [named or candidate_replicas]
