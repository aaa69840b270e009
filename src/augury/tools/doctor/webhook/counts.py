"""The webhook's metrics for Prometheus."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from augury.tools.doctor.webhook.judge import ToldFinding

TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
# Kinds that are counted by name; all others share one label value, so that its cardinality stays bounded.
KINDS = set(
    """
    Pod PodTemplate Deployment StatefulSet DaemonSet ReplicaSet Job CronJob ConfigMap LeaderWorkerSet
    InferenceService LLMInferenceService LLMInferenceServiceConfig ServingRuntime ClusterServingRuntime Workspace
    InferenceSet RayCluster RayService RayJob DynamoGraphDeployment DynamoComponentDeployment
    """.split()
)


class WebhookMetrics:
    """The metrics of one server."""

    def __init__(self) -> None:
        """Use a registry of its own, so that two servers in one process do not clash."""
        self.registry = CollectorRegistry()
        self.reviews = Counter(
            "augury:doctor_reviews", "Objects by answer.", ["answer", "kind"], registry=self.registry
        )
        self.findings = Counter(
            "augury:doctor_findings", "Findings by rule.", ["id", "severity"], registry=self.registry
        )
        self.seconds = Histogram(
            "augury:doctor_review_seconds", "Time a review took.", buckets=SECONDS, registry=self.registry
        )

    def count(self, answer: str, kind: str, told: Sequence[ToldFinding], seconds: float) -> None:
        """Count one review, which took `seconds`, and its findings."""
        self.reviews.labels(answer, kind if kind in KINDS else "other").inc()
        self.seconds.observe(seconds)
        for one in told:
            self.findings.labels(one.id, one.severity).inc()

    def text(self) -> bytes:
        """The metrics in Prometheus's format."""
        return generate_latest(self.registry)
