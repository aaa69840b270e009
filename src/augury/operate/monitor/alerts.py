"""Alerts: when they fire, what they say, what to do first. None fires where there is no traffic to judge."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from augury.operate.monitor.settings import FEWEST_DRAFTED, Settings

MARK = re.compile("@(model|value|where|engine|k)")
RUNBOOK = "docs/monitor.md"
MODEL = "{{ $labels.model_name }}"
SHARE = "{{ $value | humanizePercentage }}"
NUMBER = '{{ $value | printf "%.2f" }}'
HIT_DROP = 0.10  # of the share of prompt tokens found in the cache; the mildest report is 0.21
FALL, CLIMB = 0.10, 0.20  # of acceptance and of KV use within half an hour
TRAFFIC = f"> {FEWEST_DRAFTED:g}"


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert; in its sentences @model, @value, @where and @k stand for templates."""

    name: str
    expr: str
    wait: str
    severity: str
    summary: str
    meaning: str
    first: str
    templates: dict[str, str] = field(default_factory=dict)

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
        """Its sentences, with these words for the marks in them."""
        said = {"summary": self.summary, "description": self.meaning, "first_step": self.first, "runbook": self.anchor}
        marks = {"model": MODEL, "value": SHARE} | words
        return {name: MARK.sub(lambda found: marks[found[1]], text) for name, text in said.items()}

    @property
    def anchor(self) -> str:
        """Its section of the documentation."""
        return f"{RUNBOOK}#{self.name.lower()}"


def alerts(settings: Settings) -> list[Alert]:
    """Every alert that can be judged with these settings."""
    writer = _Writer(settings)
    every = [writer.no_drafts(), writer.never_accepted(), writer.position(), writer.apart()]
    if settings.min_acceptance is not None:
        every.insert(0, writer.acceptance(settings.min_acceptance))
    if settings.ours or settings.baseline_tok_s is not None:
        every.append(writer.below_plain())
    return [*every, writer.prefix_hits(), writer.queue(), writer.kv(), writer.down()]


def left_out(settings: Settings) -> dict[str, str]:
    """Alerts that these settings do not allow, and why."""
    missing = {}
    if settings.min_acceptance is None:
        missing["AuguryAcceptanceLow"] = (
            f"{settings.method.name} has no rate that is too low by itself; --min-acceptance sets one"
        )
    if not settings.ours and settings.baseline_tok_s is None:
        missing["AuguryBelowPlain"] = (
            "vLLM does not measure its speed-up; measure the server without speculation (augury bench serve URL) and "
            "give its output tokens a second and request by --baseline-tok-s"
        )
    return missing


class _Writer:
    """Writes the alerts for one choice of settings."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.recorded = settings, settings.recorded
        self.model = f"on ({', '.join(settings.model_labels)})"
        self.engine = f"on ({', '.join(settings.engine_labels)})"
        self.enough = f"{self.model} {self.recorded('model_draft_tokens:rate5m')} {TRAFFIC}"
        # The busiest server of the model: where `augury diagnose` will see most.
        busiest = self._asked("topk(1, augury:engine_generation_tokens:rate5m{%s})")
        self.where = f'{busiest}{{{{ . | first | label "instance" }}}}{{{{ else }}}}HOST:PORT{{{{ end }}}}'

    def _asked(self, query: str) -> str:
        """The beginning of a template that asks Prometheus about the alert's model; %s becomes its labels."""
        labels = self.settings.model_labels
        matchers = ",".join(f"{label}=%q" for label in labels)
        values = " ".join(f"$labels.{label}" for label in labels)
        return f'{{{{ with printf "{query % matchers}" {values} | query }}}}'

    def _alert(self, name: str, expr: str, wait: str, severity: str, *texts: str, **templates: str) -> Alert:
        summary, meaning, first = texts
        return Alert(name, expr, wait, severity, summary, meaning, first, {"where": self.where} | templates)

    def acceptance(self, floor: float) -> Alert:
        """A drafter that misses more than it hits."""
        return self._alert(
            "AuguryAcceptanceLow", f"{self.recorded('model_acceptance:ratio_rate5m')} < {floor:g} and {self.enough}",
            "10m", "warning",
            f"@model: @value of the drafted tokens are accepted, under {floor:.2f} for ten minutes",
            f"Under {floor:.2f} a drafter such as {self.settings.method.name} has a fault until shown otherwise: "
            "another tokenizer, a wrong checkpoint, traffic or a temperature far from what it was trained on.",
            "augury diagnose http://@where says which; look at the first position before all others.",
        )  # fmt: skip

    def no_drafts(self) -> Alert:
        """Speculation that is not there, or does nothing."""
        free = self.settings.model_free
        meaning = "The configuration was refused or ignored, the method was told wrong, or a plug-in is missing."
        if free:
            meaning += " With a method that looks text up it may also be that nothing repeats itself."
        generating = f"{self.recorded('model_generation_tokens:rate5m')} {TRAFFIC}"
        return self._alert(
            "AuguryNoDrafts", f"{generating} unless {self.model} {self.recorded('model_drafts:rate5m')} > 0",
            "30m" if free else "10m", "info" if free else "critical",
            "@model generates @value tokens a second and drafts none", meaning,
            "augury diagnose http://@where, then the server's start-up log; augury doctor on its command.",
            value='{{ $value | printf "%.0f" }}',
        )  # fmt: skip

    def never_accepted(self) -> Alert:
        """Drafts that are all wrong."""
        nothing = f"{self.recorded('model_acceptance_length:mean5m')} <= {self.settings.length_one:g}"
        return self._alert(
            "AuguryDraftsNeverAccepted", f"{nothing} and {self.enough}", "10m", "critical",
            "@model drafts and nothing is accepted (length @value, the target's own token included)",
            "Drafter and method do not match; an EAGLE-3 checkpoint run as EAGLE does this without a word. Every step "
            "pays for its drafts and gains nothing.",
            "augury diagnose http://@where, and compare the method with the drafter's config.json; meanwhile serve "
            "plain.",
            value=NUMBER,
        )  # fmt: skip

    def position(self) -> Alert:
        """A K that is too large, with the one to use."""
        floor, name = f"{self.settings.min_position:g}", "model_position_acceptance:ratio_rate5m"
        useful = (
            self._asked(f"count(augury:{name}{{%s}} >= {floor})")
            + '{{ . | first | value | printf "set num_speculative_tokens to %.0f" }}'
            "{{ else }}not even the first position reaches it, so serve without speculation until the drafter is mended"
            "{{ end }}"
        )
        lowest = f"min by ({', '.join(self.settings.model_labels)}) ({self.recorded(name)})"
        return self._alert(
            "AuguryPositionWasteful", f"{lowest} < {floor} and {self.enough}", "30m", "warning",
            f"@model: the last drafted position is accepted in @value of the drafts, under {floor}: @k",
            f"A position under {floor} costs more in verification than it brings. K is the number of positions that "
            "still reach it.",
            "Restart with that K, or give num_speculative_tokens_per_batch_size (vLLM 0.24) where it depends on load; "
            "augury diagnose http://@where shows every position.",
            k=useful,
        )  # fmt: skip

    def apart(self) -> Alert:
        """One server or model unlike the others."""
        rate = self.recorded("engine_acceptance:ratio_rate5m")
        away = f"abs({rate} / on (job) group_left () avg by (job) ({rate}) - 1) > {self.settings.apart:g}"
        return self._alert(
            "AuguryOneApart",
            f"{away} and {self.engine} {self.recorded('engine_draft_tokens:rate5m')} {TRAFFIC}",
            "30m", "warning",
            "@model on @where (engine @engine): acceptance is @value away from the mean of its job",
            "One model, adapter or class of traffic is drafted for much worse, or much better, than the others: a head "
            "trained on chat falls from 3 tokens a step to 2 on code. Or one server runs another checkpoint.",
            "augury diagnose http://@where, and a server near the mean; route that class elsewhere or train on it.",
            where="{{ $labels.instance }}", engine="{{ $labels.engine }}",
        )  # fmt: skip

    def below_plain(self) -> Alert:
        """Speculation that does harm."""
        settings = self.settings
        if settings.ours:
            expr, unit = f"{self.recorded('model_speedup:min')} < {settings.break_even:g}", "times plain decoding"
        else:
            plain = settings.baseline_tok_s or 0.0
            expr = f"{self.recorded('model_tokens_per_request:rate5m')} < {plain * settings.break_even:g}"
            unit = f"tokens a second and request, and plain decoding made {plain:g}"
        return self._alert(
            "AuguryBelowPlain", f"{expr} and {self.enough}", "15m", "critical",
            f"@model is slower than without speculation: @value {unit}",
            "Verifying rejected drafts costs more than accepted ones save; mostly the batch has become so large that "
            "the target computes all the time.",
            "augury diagnose http://@where; lower K, gate it by batch size, or switch speculation off.",
            value=NUMBER,
        )  # fmt: skip

    def prefix_hits(self) -> Alert:
        """A prefix cache that speculation has spoilt: against a day ago, and only if drafts are new since then."""
        hits, drafts = self.recorded("model_prefix_cache_hit:ratio_rate30m"), self.recorded("model_drafts:rate5m")
        return self._alert(
            "AuguryPrefixHitsFell",
            f"({hits} offset 1d - {hits}) > {HIT_DROP:g} and {self.enough} unless {self.model} {drafts} offset 1d > 0",
            "30m", "warning",
            "@model: the prefix cache is hit @value less than a day ago, before speculation was on",
            "EAGLE-like drafters drop the last block of every hit; 92 to 71, 97 to 40 and 73 to 0 per cent were "
            "reported. Long prompts are then read again, which costs more than drafts save.",
            "augury diagnose http://@where; smaller KV blocks, or disable_eagle_block_drop (vLLM 0.30).",
        )  # fmt: skip

    def queue(self) -> Alert:
        """Good drafts, and still more requests than can be served."""
        waiting, good = self.recorded("model_requests_waiting:sum"), f"{self.settings.long_length:g}"
        return self._alert(
            "AuguryQueueGrows",
            f"deriv({waiting}[10m]) > 0 and min_over_time({waiting}[10m]) > 0 "
            f"and {self.model} {self.recorded('model_acceptance_length:mean5m')} > {good}",
            "10m", "warning",
            "@model: the queue grows although drafts are good",
            f"More than {good} tokens a step and still more requests than it can serve: the target computes all the "
            "time, and rejected drafts take their share of it.",
            "augury diagnose http://@where; cut K for large batches, or send requests elsewhere.",
        )  # fmt: skip

    def kv(self) -> Alert:
        """Memory pressure that looks like a bad drafter."""
        rate, used = self.recorded("model_acceptance:ratio_rate5m"), self.recorded("model_kv_cache_usage:max")
        return self._alert(
            "AuguryAcceptanceFallsKvClimbs",
            f"delta({rate}[30m]) < -{FALL:g} and {self.model} delta({used}[30m]) > {CLIMB:g} and {self.enough}",
            "10m", "warning",
            f"@model: acceptance fell by more than {FALL:.2f} within half an hour while the KV cache filled",
            "Draft slots, a cache fault or preemption: drafts of preempted requests are lost.",
            "augury diagnose http://@where; mend the memory first (--max-num-seqs, K), then judge the drafter.",
        )  # fmt: skip

    def down(self) -> Alert:
        """Nobody to ask."""
        up = f"up{self.settings.targets()}"
        return self._alert(
            "AuguryTargetDown", f"{up} == 0 or absent({up})", "2m", "critical",
            "the metrics of @where cannot be read",
            "The server is down, or its /metrics is; no other alert can speak for it.",
            "Ask the server itself: curl http://@where/health; augury check http://@where once it answers.",
            where="{{ if $labels.instance }}{{ $labels.instance }}{{ else }}HOST:PORT{{ end }}",
        )  # fmt: skip
