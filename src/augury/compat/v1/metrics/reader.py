"""vllm.v1.metrics.reader: the classes of what `LLM.get_metrics()` gives. Histograms are a server's, in /metrics."""

from augury.observe.stats import Counter, Gauge, Metric, Vector

__all__ = ["Counter", "Gauge", "Metric", "Vector"]
