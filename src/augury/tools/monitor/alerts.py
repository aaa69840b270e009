"""Alerts: when they fire, what they say, what to do first. None fires without traffic to judge by."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from augury.tools.monitor.settings import FEWEST_DRAFTED, FEWEST_DRAFTS, KitSettings
from augury.tools.shared.templates import fill

MARK = re.compile("@(model|value|where|engine|which|k)")
RUNBOOK = "RUNBOOK.md"  # next to the kit's README
MODEL = "{{ $labels.model_name }}"
SHARE = "{{ $value | humanizePercentage }}"
# A model's alert names the server where `augury diagnose` will see most: the busiest, or one with the fault.
BUSIEST = "topk(1, augury:engine_generation_tokens:rate5m{%s})"


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert; in its sentences @model, @value, @where, @engine, @which and @k stand for templates."""

    name: str
    expr: str
    wait: str
    severity: str
    summary: str
    meaning: str
    first: str
    templates: dict[str, str] = field(default_factory=dict)
    published: str | None = None  # where an operator serves the runbook

    def rule(self) -> dict[str, Any]:
        """The alert as an entry of the rule file."""
        return {
            "alert": self.name,
            "expr": self.expr,
            "for": self.wait,
            "labels": {"severity": self.severity},
            "annotations": self.annotations(**self.templates),
        }

    def annotations(self, **words: str) -> dict[str, str]:
        """Its sentences, with their marks replaced by these words, and a link to its section of the runbook."""
        said = {"summary": self.summary, "description": self.meaning, "first_step": self.first}
        marks = {"model": MODEL, "value": SHARE} | words
        sentences = {name: MARK.sub(lambda found: marks[found[1]], text) for name, text in said.items()}
        page = {"runbook_url": self.published} if self.published else {"runbook": RUNBOOK}
        return sentences | {name: f"{base}#{self.name.lower()}" for name, base in page.items()}


def alerts(settings: KitSettings) -> list[Alert]:
    """Every alert that these settings allow."""

    def server(query: str) -> str:
        """A template for the address of the server that a query finds."""
        return f'{_asked(settings, query)}{{{{ . | first | label "instance" }}}}{{{{ else }}}}HOST:PORT{{{{ end }}}}'

    words = {
        "model": {"where": server(BUSIEST)},
        "engine": {"where": "{{ $labels.instance }}", "engine": "{{ $labels.engine }}"},
    }
    made = fill("monitor/alerts.yml", server=server, asked=lambda query: _asked(settings, query), **_parts(settings))
    for one in made:
        one["templates"] = words[one.pop("of")] | one.get("templates", {})
    return [Alert(**one, published=settings.runbook_url) for one in made]


def _parts(settings: KitSettings) -> dict[str, Any]:
    """Expressions and functions that the alerts are written with."""
    recorded = settings.recorded
    on_model, on_engine = (f"on ({', '.join(names)})" for names in (settings.model_labels, settings.engine_labels))
    rate, first = (recorded(f"engine_{name}:ratio_rate5m") for name in ("acceptance", "first_position"))
    generating = f"{recorded('engine_generation_tokens:rate5m')} > {FEWEST_DRAFTED:g}"
    return {
        "s": settings,
        "recorded": recorded,
        "number": "{:g}".format,
        "two": "{:.2f}".format,
        "rate": rate,
        "low": _low(settings, rate, first),
        "which": _which(settings),
        "none_useful": none_useful(settings),
        "on_model": on_model,
        "model_labels": ", ".join(settings.model_labels),
        "fewest_drafts": f"{FEWEST_DRAFTS:g}",
        "enough": f"{on_model} {recorded('model_draft_tokens:rate5m')} > {FEWEST_DRAFTED:g}",
        "enough_here": f"{on_engine} {recorded('engine_drafts:rate5m')} > {FEWEST_DRAFTS:g}",
        "without_drafts": f"{generating} unless {on_engine} {recorded('engine_drafts:rate5m')} > 0",
    }


def _asked(settings: KitSettings, query: str, labels: tuple[str, ...] = ()) -> str:
    """The beginning of a template that queries Prometheus for the alert's labels, which replace %s."""
    labels = labels or settings.model_labels
    matchers = ",".join(f"{label}=%q" for label in labels)
    values = " ".join(f"$labels.{label}" for label in labels)
    return f'{{{{ with printf "{query % matchers}" {values} | query }}}}'


def _low(settings: KitSettings, rate: str, first: str) -> str:
    """The PromQL condition for low acceptance: by the rate, or by the first position alone."""
    conditions = []
    if settings.min_acceptance is not None:
        beside = f" and {first} < {settings.first_beside:g}" if settings.first_beside is not None else ""
        conditions.append(f"({rate} < {settings.min_acceptance:g}{beside})")
    if settings.first_alone is not None:
        conditions.append(f"({first} < {settings.first_alone:g})")
    return " or ".join(conditions)


def _which(settings: KitSettings) -> str:
    """A template that says which of the two rules is broken, the first position's if both are."""
    first = "{{ . | first | value | humanizePercentage }}"
    rate = rate_low(settings, SHARE, first)
    if settings.first_alone is None:
        return rate
    asked = _asked(settings, "augury:engine_first_position:ratio_rate5m{%s}", settings.engine_labels)
    if settings.min_acceptance is None:
        return f"{asked}{first_low(settings, first)}{{{{ end }}}}"
    under = f"{{{{ if lt (. | first | value) {settings.first_alone:g} }}}}"
    return f"{asked}{under}{first_low(settings, first)}{{{{ else }}}}{rate}{{{{ end }}}}{{{{ end }}}}"


def left_out(settings: KitSettings) -> dict[str, str]:
    """Alerts that these settings do not allow, by name, with the reason."""
    missing = {}
    if settings.min_acceptance is settings.first_alone is None:
        missing["AuguryAcceptanceLow"] = (
            f"{settings.method.name} has no rate that is too low by itself; --min-acceptance sets one"
        )
    if settings.min_position is None:
        missing["AuguryPositionWasteful"] = (
            f"{settings.method.name} has no bar for late positions, most of which are rejected; --min-position-rate "
            "sets one"
        )
    if not settings.ours and settings.baseline_tok_s is None:
        missing["AuguryBelowPlain"] = (
            "vLLM does not measure its speed-up; measure the server without speculation (augury bench serve URL) and "
            "give its output tokens a second and request by --baseline-tok-s"
        )
    return missing


def rate_low(settings: KitSettings, rate: str, first: str) -> str:
    """The sentence for a low rate."""
    said = f"{rate} of the drafted tokens are accepted, under {settings.min_acceptance or 0:.2f} for ten minutes"
    if settings.first_beside is None:
        return said
    return f"{said}, and already the first position has {first}, under {settings.first_beside:.2f}"


def first_low(settings: KitSettings, first: str) -> str:
    """The sentence for a low first position."""
    bar = f"under {settings.first_alone or 0:.2f} for ten minutes"
    return f"the first drafted token is accepted in {first} of the drafts, {bar}"


def none_useful(settings: KitSettings) -> str:
    """The sentence for when not even the first position reaches the bar."""
    if settings.model_based:
        return "not even the first position reaches it, so serve without speculation until the drafter is fixed"
    return "not even the first position reaches it"
