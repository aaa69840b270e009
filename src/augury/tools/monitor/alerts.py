"""Alerts: when they fire, what they say, what to do first. None fires where there is no traffic to judge."""

from __future__ import annotations

from augury.tools.monitor.alert import SHARE, Alert
from augury.tools.monitor.settings import FEWEST_DRAFTED, FEWEST_DRAFTS, Settings

NUMBER = '{{ $value | printf "%.2f" }}'
HIT_DROP = 0.10  # of the share of prompt tokens found in the cache; the mildest report is 0.21
FALL, CLIMB = 0.10, 0.20  # of acceptance and of KV use within half an hour
TRAFFIC = f"> {FEWEST_DRAFTED:g}"
SEEN = "1d"  # how long a server that is gone is remembered by its series


def alerts(settings: Settings) -> list[Alert]:
    """Every alert that can be judged with these settings."""
    writer = _Writer(settings)
    every = [writer.no_drafts(), writer.never_accepted(), writer.apart()]
    if settings.min_acceptance is not None or settings.first_alone is not None:
        every.insert(0, writer.acceptance())
    if settings.model_free:
        every.append(writer.one_without_drafts())
    if settings.min_position is not None:
        every.append(writer.position(settings.min_position))
    if settings.ours or settings.baseline_tok_s is not None:
        every.append(writer.below_plain())
    return [*every, writer.prefix_hits(), writer.queue(), writer.kv(), writer.down()]


def left_out(settings: Settings) -> dict[str, str]:
    """Alerts that these settings do not allow, and why."""
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


class _Writer:
    """Writes the alerts for one choice of settings."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.recorded = settings, settings.recorded
        self.model = f"on ({', '.join(settings.model_labels)})"
        self.engine = f"on ({', '.join(settings.engine_labels)})"
        self.enough = f"{self.model} {self.recorded('model_draft_tokens:rate5m')} {TRAFFIC}"
        self.enough_here = f"{self.engine} {self.recorded('engine_drafts:rate5m')} > {FEWEST_DRAFTS:g}"
        # A model's alert names the server where `augury diagnose` will see most: the busiest, or a worse one.
        self.busiest = "topk(1, augury:engine_generation_tokens:rate5m{%s})"

    def _asked(self, query: str, labels: tuple[str, ...] = ()) -> str:
        """The beginning of a template that asks Prometheus about the alert's model; %s becomes its labels."""
        labels = labels or self.settings.model_labels
        matchers = ",".join(f"{label}=%q" for label in labels)
        values = " ".join(f"$labels.{label}" for label in labels)
        return f'{{{{ with printf "{query % matchers}" {values} | query }}}}'

    def _server(self, query: str) -> str:
        """A template that gives the address of the server that a query finds."""
        return f'{self._asked(query)}{{{{ . | first | label "instance" }}}}{{{{ else }}}}HOST:PORT{{{{ end }}}}'

    def _alert(self, name: str, expr: str, wait: str, severity: str, *texts: str, **templates: str) -> Alert:
        """Of a model."""
        summary, meaning, first = texts
        words = {"where": self._server(self.busiest)} | templates
        return Alert(name, expr, wait, severity, summary, meaning, first, words, self.settings.runbook_url)

    def _of_engine(self, name: str, expr: str, wait: str, severity: str, *texts: str, **templates: str) -> Alert:
        """Of one engine on one server, which its labels name."""
        words = {"where": "{{ $labels.instance }}", "engine": "{{ $labels.engine }}"} | templates
        return self._alert(name, expr, wait, severity, *texts, **words)

    def acceptance(self) -> Alert:
        """A drafter that does not fit, by the two laws of `augury check`: rate-under-half and first-position-low."""
        settings, conditions = self.settings, []
        rate, first = (self.recorded(f"engine_{name}:ratio_rate5m") for name in ("acceptance", "first_position"))
        if settings.min_acceptance is not None:
            beside = f" and {first} < {settings.first_beside:g}" if settings.first_beside is not None else ""
            conditions.append(f"{rate} < {settings.min_acceptance:g}{beside}")
        if settings.first_alone is not None:
            conditions.append(f"{first} < {settings.first_alone:g}")
        low = " or ".join(f"({condition})" for condition in conditions)
        by_k = " A low rate with a good first position is a K that is too large, which is another alert."
        by_k = by_k if settings.first_beside is not None else ""
        return self._of_engine(
            "AuguryAcceptanceLow", f"{rate} and ({low}) and {self.enough_here}", "10m", "warning",
            "@model on @where (engine @engine): @which",
            f"A drafter such as {settings.method.name} then has a fault until shown otherwise: another tokenizer, a "
            f"wrong checkpoint, traffic or a temperature far from what it was trained on.{by_k}",
            "augury diagnose http://@where says which; look at the first position before all others.",
            which=self._which(),
        )  # fmt: skip

    def _which(self) -> str:
        """A template that says which of the two laws is broken; the first position explains a low rate too."""
        settings, first = self.settings, "{{ . | first | value | humanizePercentage }}"
        rate = rate_low(settings, SHARE, first)
        if settings.first_alone is None:
            return rate
        asked = self._asked("augury:engine_first_position:ratio_rate5m{%s}", settings.engine_labels)
        if settings.min_acceptance is None:
            return f"{asked}{first_low(settings, first)}{{{{ end }}}}"
        under = f"{{{{ if lt (. | first | value) {settings.first_alone:g} }}}}"
        return f"{asked}{under}{first_low(settings, first)}{{{{ else }}}}{rate}{{{{ end }}}}{{{{ end }}}}"

    def _without_drafts(self) -> str:
        generating = f"{self.recorded('engine_generation_tokens:rate5m')} {TRAFFIC}"
        return f"{generating} unless {self.engine} {self.recorded('engine_drafts:rate5m')} > 0"

    def no_drafts(self) -> Alert:
        """Speculation that is not there, or does nothing."""
        free = self.settings.model_free
        meaning = "The configuration was refused or ignored, the method was told wrong, or a plug-in is missing."
        if free:
            meaning += " With a method that looks text up it may also be that nothing repeats itself."
        return self._of_engine(
            "AuguryNoDrafts", self._without_drafts(), "30m" if free else "10m", "info" if free else "critical",
            "@model on @where (engine @engine) generates @value tokens a second and drafts none", meaning,
            "augury diagnose http://@where, then the server's start-up log; augury doctor on its command.",
            value='{{ $value | printf "%.0f" }}',
        )  # fmt: skip

    def one_without_drafts(self) -> Alert:
        """A look-up that finds nothing on one server only: then it is not the text."""
        drafting = f"{self.model} {self.recorded('model_drafts:rate5m')} > {FEWEST_DRAFTS:g}"
        return self._of_engine(
            "AuguryOneWithoutDrafts", f"({self._without_drafts()}) and {drafting}", "30m", "warning",
            "@model on @where (engine @engine) drafts none, and others of this model do",
            "The others find text that repeats itself, so this server most likely runs without speculation: started "
            "with other options, or its configuration was refused.",
            "augury diagnose http://@where, and compare its start-up log with another's; augury doctor on its command.",
        )  # fmt: skip

    def never_accepted(self) -> Alert:
        """Drafts that are all wrong."""
        nothing = f"{self.recorded('engine_acceptance_length:mean5m')} <= {self.settings.length_one:g}"
        return self._of_engine(
            "AuguryDraftsNeverAccepted", f"{nothing} and {self.enough_here}", "10m", "critical",
            "@model on @where (engine @engine) drafts and nothing is accepted (length @value, the target's own token "
            "included)",
            "Drafter and method do not match; an EAGLE-3 checkpoint run as EAGLE does this without a word. Every step "
            "pays for its drafts and gains nothing.",
            "augury diagnose http://@where, and compare the method with the drafter's config.json; meanwhile serve "
            "plain.",
            value=NUMBER,
        )  # fmt: skip

    def position(self, bar: float) -> Alert:
        """A K that may be too large, with the one to use: a notice, for a smooth decay is healthy."""
        floor, name = f"{bar:.2f}", "model_position_acceptance:ratio_rate5m"
        useful = (
            self._asked(f"count(augury:{name}{{%s}} >= {bar:g})")
            + '{{ . | first | value | printf "num_speculative_tokens %.0f keeps those above" }}'
            f"{{{{ else }}}}{none_useful(self.settings)}{{{{ end }}}}"
        )
        lowest = f"min by ({', '.join(self.settings.model_labels)}) ({self.recorded(name)})"
        return self._alert(
            "AuguryPositionWasteful", f"{lowest} < {bar:g} and {self.enough}", "30m", "info",
            f"@model: the last drafted position is accepted in @value of the drafts; under {floor} seldom pays: @k",
            "A smooth decay over the positions is healthy, and augury check passes it; but a position under "
            f"{floor} seldom pays for its verification, least of all under load. K is the number of positions that "
            "reach it.",
            "Measure that K: augury bench serve URL --save FILE, then with the other K --compare FILE; or give "
            "num_speculative_tokens_per_batch_size (vLLM 0.24) where it depends on load. augury diagnose http://@where "
            "shows every position.",
            k=useful,
        )  # fmt: skip

    def apart(self) -> Alert:
        """One server that is drafted for much worse than the others of its model."""
        rate = f"({self.recorded('engine_acceptance:ratio_rate5m')} and {self.enough_here})"
        # the median: a mean would let one good server make the others look bad
        usual = f"quantile by ({', '.join(self.settings.model_labels)}) (0.5, {rate})"
        return self._of_engine(
            "AuguryOneApart", f"1 - {rate} / {self.model} group_left () {usual} > {self.settings.apart:g}",
            "30m", "warning",
            "@model on @where (engine @engine): acceptance is @value below the median of its model",
            "One server is drafted for much worse than the others of its model: it runs another checkpoint or other "
            "options, or a class of traffic goes to it that the drafter does not know (a head trained on chat falls "
            "from 3 tokens a step to 2 on code).",
            "augury diagnose http://@where, and a server near the median; route that class elsewhere or train on it.",
        )  # fmt: skip

    def below_plain(self) -> Alert:
        """Speculation that does harm."""
        settings, worst = self.settings, self.busiest
        if settings.ours:
            worst = "bottomk(1, augury:speedup_estimate{%s})"
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
            value=NUMBER, where=self._server(worst),
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
            where=self._server("topk(1, vllm:num_requests_waiting{%s})"),
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
            where=self._server("topk(1, vllm:kv_cache_usage_perc{%s})"),
        )  # fmt: skip

    def down(self) -> Alert:
        """Nobody to ask."""
        settings, up = self.settings, f"up{self.settings.targets()}"
        expr = f"{up} == 0 or absent({up})"
        if not settings.names_targets:  # else every exporter in Prometheus would be meant
            seen = f"last_over_time(vllm:generation_tokens_total{settings.selected()}[{SEEN}])"
            expr = f"{up} == 0 and on (job, instance) {seen}"
        return self._alert(
            "AuguryTargetDown", expr, "2m", "critical",
            "the metrics of @where cannot be read",
            "The server is down, or its /metrics is; no other alert can speak for it.",
            "Ask the server itself: curl http://@where/health; augury check http://@where once it answers.",
            where="{{ if $labels.instance }}{{ $labels.instance }}{{ else }}HOST:PORT{{ end }}",
        )  # fmt: skip


def rate_low(settings: Settings, rate: str, first: str) -> str:
    """What is said where the rate is what is wrong."""
    said = f"{rate} of the drafted tokens are accepted, under {settings.min_acceptance or 0:.2f} for ten minutes"
    if settings.first_beside is None:
        return said
    return f"{said}, and already the first position has {first}, under {settings.first_beside:.2f}"


def first_low(settings: Settings, first: str) -> str:
    """What is said where the first position is."""
    bar = f"under {settings.first_alone or 0:.2f} for ten minutes"
    return f"the first drafted token is accepted in {first} of the drafts, {bar}"


def none_useful(settings: Settings) -> str:
    """What is said where not even the first position reaches the bar."""
    if settings.model_based:
        return "not even the first position reaches it, so serve without speculation until the drafter is mended"
    return "not even the first position reaches it"
