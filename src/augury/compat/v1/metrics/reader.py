"""vllm.v1.metrics.reader: the classes that `LLM.get_metrics()` returns. Histograms are only in a server's /metrics."""

from augury.observe.stats import Counter, Gauge, Metric, Vector

__all__ = ["Counter", "Gauge", "Metric", "Vector"]
