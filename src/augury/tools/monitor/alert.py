"""One alert: when it fires, what it says, what to do first, and where its page is."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

MARK = re.compile("@(model|value|where|engine|which|k)")
RUNBOOK = "RUNBOOK.md"  # beside the README of the kit
MODEL = "{{ $labels.model_name }}"
SHARE = "{{ $value | humanizePercentage }}"


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
        """As the rule file has it."""
        return {
            "alert": self.name,
            "expr": self.expr,
            "for": self.wait,
            "labels": {"severity": self.severity},
            "annotations": self.annotations(**self.templates),
        }

    def annotations(self, **words: str) -> dict[str, str]:
        """Its sentences, with these words for the marks in them, and its section of the runbook."""
        said = {"summary": self.summary, "description": self.meaning, "first_step": self.first}
        marks = {"model": MODEL, "value": SHARE} | words
        sentences = {name: MARK.sub(lambda found: marks[found[1]], text) for name, text in said.items()}
        page = {"runbook_url": self.published} if self.published else {"runbook": RUNBOOK}
        return sentences | {name: f"{base}#{self.name.lower()}" for name, base in page.items()}
