"""Recording rules: the figures of speculation by engine and by model, under names of our own."""

from __future__ import annotations

from typing import Any

from augury.tools.monitor.settings import KitSettings
from augury.tools.shared.templates import fill


def recording(settings: KitSettings) -> dict[str, Any]:
    """The rule file, ready to be written as YAML."""
    engine, model = ", ".join(settings.engine_labels), ", ".join(settings.model_labels)
    recorded = settings.recorded

    def rate(counter: str, by: str = engine, over: str = "5m") -> str:
        return f"sum by ({by}) (rate({counter}{settings.selected()}[{over}]))"

    def total(name: str, by: str = model) -> str:
        return f"sum by ({by}) ({recorded(f'engine_{name}:rate5m')})"

    def per(above: str, below: str) -> str:
        return f"{recorded(f'model_{above}:rate5m')} / ({recorded(f'model_{below}:rate5m')} > 0)"

    words = {"engine": engine, "model": model, "ours": settings.ours, "selected": settings.selected()}
    rules = fill("monitor/recording.yml", recorded=recorded, rate=rate, total=total, per=per, **words)
    return {"groups": [{"name": "augury-recording", "rules": rules}]}
