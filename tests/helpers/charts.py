"""The Helm chart rendered by gotpl, an implementation of Go's templates with Sprig's and Helm's functions in Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from gotpl.exts.helm import HelmTemplateEngine

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "augury"


def values(**changed: Any) -> dict[str, Any]:
    """The chart's values with changes, merged as Helm merges them."""
    found: dict[str, Any] = _merged(yaml.safe_load((CHART / "values.yaml").read_text()), changed)
    return found


def _merged(below: Any, above: Any) -> Any:
    if not isinstance(below, dict) or not isinstance(above, dict):
        return above
    return {**below, **{name: _merged(below.get(name), value) for name, value in above.items()}}


def rendered(release: str = "rel", **changed: Any) -> dict[str, dict[str, Any]]:
    """What `helm template` would print, by kind; every kind is there at most once."""
    told = yaml.safe_load((CHART / "Chart.yaml").read_text())
    chart = {name[0].upper() + name[1:]: value for name, value in told.items()}
    data = {
        "Values": values(**changed),
        "Chart": chart,
        "Release": {"Name": release, "Namespace": "llms", "Service": "Helm"},
    }
    sources = {path.name: path.read_text() for path in (CHART / "templates").iterdir()}
    pages = HelmTemplateEngine(sources).render({name: data for name in sources if name.endswith(".yaml")})
    objects = [one for page in pages.values() for one in yaml.safe_load_all(page) if one]
    assert len({one["kind"] for one in objects}) == len(objects)
    return {one["kind"]: one for one in objects}
