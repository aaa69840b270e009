"""Unit tests for promtool: for each alert, a scenario in which it fires and one in which it does not."""

from __future__ import annotations

from typing import Any

from augury.tools.monitor.alerts import Alert, alerts, first_low, none_useful, rate_low
from augury.tools.monitor.matchers import example_labels
from augury.tools.monitor.settings import KitSettings
from augury.tools.monitor.worlds import HOUR, World

Test = dict[str, Any]
DAY = 24 * HOUR
USUAL_BAR = 0.4  # the usual minimum rate of a position


def rule_tests(settings: KitSettings) -> dict[str, Any]:
    """The test file, ready to be written as YAML; it needs the two rule files in the same directory."""
    return {
        "rule_files": ["augury-recording.yml", "augury-alerts.yml"],
        "evaluation_interval": "5m",  # one test covers a whole day
        "tests": Tests(settings).every(),
    }


class Tests:
    """Writes the tests for one set of settings."""

    def __init__(self, settings: KitSettings) -> None:
        self.settings = settings
        self.alerts = {alert.name: alert for alert in alerts(settings)}
        matchers = [*settings.matchers, *([settings.model] if settings.model else [])]
        self.fixed = {matcher.label for matcher in matchers}
        plain = {"job": "vllm", "instance": "10.0.0.1:8000", "model_name": "toy", "engine": "0"}
        free = {name: value for name, value in plain.items() if name not in self.fixed}
        self.labels = example_labels(matchers) | free
        floors = (settings.min_acceptance or 0.0, settings.min_position or 0.0, 0.5)
        self.good = round((3 + max(floors)) / 4, 4)  # a rate at which no alert fires

    def every(self) -> list[Test]:
        """All tests for the alerts that exist."""
        made = [self._quiet(), self._restart(), *self._decay(), *self._no_drafts(), *self._never(), self._queue()]
        made += [self._kv(), *self._prefix(), self._down(), *self._apart(), *self._one_sick()]
        if self.settings.min_position is not None:
            made += self._position(self.settings.min_position)
        if "AuguryAcceptanceLow" in self.alerts:
            made += self._acceptance()
        if "AuguryBelowPlain" in self.alerts:
            made += self._below_plain()
        return made

    def _world(self, rates: list[float] | None = None, minutes: int = HOUR) -> World:
        world = World(self.labels, self.settings.ours)
        return world.traffic(rates if rates is not None else self._all(self.good), minutes)

    def _about(self, labels: tuple[str, ...]) -> dict[str, str]:
        return {label: self.labels.get(label, "") for label in labels}

    def _all(self, rate: float) -> list[float]:
        return [rate] * self.settings.k

    def _test(self, name: str, world: World, *checks: dict[str, Any]) -> Test:
        return {"name": name, "interval": "1m", "input_series": world.series, "alert_rule_test": list(checks)}

    def _silent(self, name: str, minute: int) -> dict[str, Any]:
        return {"eval_time": f"{minute}m", "alertname": name, "exp_alerts": []}

    def _fires(self, name: str, minute: int, labels: dict[str, str] | None = None, **words: str) -> dict[str, Any]:
        alert: Alert = self.alerts[name]
        about = labels if labels is not None else self._about(self.settings.model_labels)
        here = {"where": about.get("instance", self.labels.get("instance", "")), "engine": about.get("engine", "")}
        marks = {"model": self.labels.get("model_name", "")} | here | words
        expected = {
            "exp_labels": {"severity": alert.severity} | {key: value for key, value in about.items() if value},
            "exp_annotations": alert.annotations(**marks),
        }
        return {"eval_time": f"{minute}m", "alertname": name, "exp_alerts": [expected]}

    def _fires_here(self, name: str, minute: int, number: str | None = None, **words: str) -> dict[str, Any]:
        """Expect an alert of one engine: the only one, or the one with this number."""
        about = self._about(self.settings.engine_labels) | ({self._free[0]: number} if number is not None else {})
        return self._fires(name, minute, about, **words)

    @property
    def _free(self) -> list[str]:
        """The labels that can distinguish engines, as the selector does not fix them."""
        return [label for label in ("instance", "engine") if label not in self.fixed]

    def _engine(self, number: int) -> dict[str, str]:
        return self.labels | {self._free[0]: str(number)}

    def _quiet(self) -> Test:
        """A healthy server that then goes idle: no alert fires."""
        world = World(self.labels, self.settings.ours).traffic(self._all(self.good), 40).idle(80)
        world.gauge("up", "1", 121, target=True)
        moments = [self._silent(name, minute) for name in self.alerts for minute in (35, 110)]
        return self._test("a healthy server, then no traffic", world, *moments)

    def _restart(self) -> Test:
        """A restart, at which counters begin again from 0: no alert fires."""
        world = (
            World(self.labels, self.settings.ours).traffic(self._all(self.good), 20).traffic(self._all(self.good), 40)
        )
        quiet = [name for name in self.alerts if name not in ("AuguryTargetDown",)]
        return self._test("a restart in between", world, *(self._silent(name, m) for name in quiet for m in (22, 55)))

    def _decay(self) -> list[Test]:
        """Healthy curves: a look-up in open chat, and vLLM's own EAGLE-3 curve, for which only K draws a notice."""
        settings, quiet = self.settings, [self._silent(name, 55) for name in self.alerts if name != "AuguryTargetDown"]
        if settings.model_free and settings.min_acceptance is settings.min_position is None:
            rates = [0.25 * 0.5**position for position in range(settings.k)]
            return [self._test("a look-up in open chat", self._world(rates), *quiet)]
        usual = settings.min_position == USUAL_BAR and (settings.min_acceptance or 0) <= 0.5
        curve = settings.method.band.curve if settings.method.band else ()
        if not curve or settings.k != len(curve) or not usual:
            return []
        name, said = "AuguryPositionWasteful", "num_speculative_tokens 2 keeps those above"
        fires = self._fires(name, 55, value=share(curve[-1]), k=said)
        others = [one for one in quiet if one["alertname"] not in (name, "AuguryBelowPlain")]
        return [self._test("vLLM's own EAGLE-3 curve", self._world(list(curve)), *others, fires)]

    def _acceptance(self) -> list[Test]:
        """Each rule by itself: a case that fires, its text, and a similar case that does not fire."""
        name, settings, tests = "AuguryAcceptanceLow", self.settings, []
        if settings.first_alone is not None:
            tests += self._first_position(settings.first_alone)
        rates = self._low_rate()
        if rates is not None:
            said = rate_low(settings, share(sum(rates) / len(rates)), share(rates[0]))
            fires = self._fires_here(name, 30, which=said)
            few = World(self.labels, settings.ours).traffic(rates, HOUR, drafts=0.01)
            tests += [
                self._test("a low rate, the first position not good", self._world(rates), self._silent(name, 8), fires),
                self._test("the same with next to no traffic", few, self._silent(name, 50)),
            ]
        if rates is not None and settings.first_beside is not None and settings.k > 1:
            good = [self.good, *[0.0] * (settings.k - 1)]
            tests.append(self._test("a low rate by K alone", self._world(good), self._silent(name, 50)))
        return tests

    def _first_position(self, bar: float) -> list[Test]:
        """A low first position, also when drafts of varying length keep the rate up."""
        name, low = "AuguryAcceptanceLow", round(0.9 * bar, 4)
        fires = self._fires_here(name, 30, which=first_low(self.settings, share(low)))
        tests = [self._test("a low first position", self._world(self._all(low)), self._silent(name, 8), fires)]
        if self.settings.k > 1:
            drafted = low * self.settings.k / self.good  # so that the rate is good
            varying = World(self.labels, self.settings.ours).traffic(self._all(low), HOUR, drafted=drafted)
            tests.append(self._test("a low first position, a good rate", varying, self._silent(name, 8), fires))
        return tests

    def _low_rate(self) -> list[float] | None:
        """Rates by position with too low a mean but no fault at the first position; None if there are none."""
        settings, floor = self.settings, self.settings.min_acceptance
        if floor is None:
            return None
        k, mean, least = settings.k, 0.8 * floor, settings.first_alone or 0.0
        first = round(max(mean, (least + (settings.first_beside or 1.0)) / 2 if k > 1 else mean), 4)
        later = [round((mean * k - first) / (k - 1), 4)] * (k - 1) if k > 1 else []
        return [first, *later] if first >= least and all(0 <= rate <= first for rate in later) else None

    def _no_drafts(self) -> list[Test]:
        name = "AuguryNoDrafts"
        plain = World(self.labels, self.settings.ours).tokens(600, HOUR)
        silent = World(self.labels, self.settings.ours).tokens(600, HOUR).traffic(self._all(self.good), HOUR, drafts=0)
        fires = self._fires_here(name, 50, value="10")
        return [
            self._test("tokens are generated, and no series of drafts is there", plain, self._silent(name, 8), fires),
            self._test("the series are there and stand still", silent, self._silent(name, 8), fires),
        ]

    def _never(self) -> list[Test]:
        name = "AuguryDraftsNeverAccepted"
        fires = self._fires_here(name, 30, value="1.00")
        return [self._test("drafts flow, none is accepted", self._world(self._all(0)), self._silent(name, 8), fires)]

    def _position(self, bar: float) -> list[Test]:
        name, low, k = "AuguryPositionWasteful", bar / 2, self.settings.k
        tests = [
            self._test(
                "no position is worth its verification",
                self._world(self._all(low)),
                self._silent(name, 28),
                self._fires(name, 55, value=share(low), k=none_useful(self.settings)),
            )
        ]
        if useful := k // 2:
            world = self._world([self.good] * useful + [low] * (k - useful))
            said = f"num_speculative_tokens {useful} keeps those above"
            fires = self._fires(name, 55, value=share(low), k=said)
            tests.append(self._test(f"a cliff after position {useful - 1}", world, self._silent(name, 28), fires))
        return tests

    def _apart(self) -> list[Test]:
        """One of four engines far below the others, then far above; engines of another model are not compared."""
        name = "AuguryOneApart"
        if not self._free:
            return []
        tests = []
        for factor in (0.2, 5.0):
            world, other = World(self.labels, self.settings.ours), self.good / 2
            usual = self.good if factor < 1 else self.good / factor
            for number in range(4):
                rate = usual if number else usual * factor
                world.traffic(self._all(rate), HOUR, labels=self._engine(number))
                if "model_name" not in self.fixed:
                    world.traffic(self._all(other), HOUR, labels=self._engine(number + 4) | {"model_name": "another"})
            world.traffic(self._all(0), HOUR, drafts=1, labels=self._engine(9))  # too few drafts to count
            fires = self._fires_here(name, 55, "0", value="80%") if factor < 1 else self._silent(name, 55)
            said = f"one of four engines is far {'below' if factor < 1 else 'above'}"
            tests.append(self._test(said, world, self._silent(name, 28), fires))
        return tests

    def _one_sick(self) -> list[Test]:
        """One of three engines has a fault; the healthy ones do not silence its alert."""
        if not self._free:
            return []
        plain, never = World(self.labels, self.settings.ours), World(self.labels, self.settings.ours)
        for number in (1, 2):
            for world in (plain, never):
                world.traffic(self._all(self.good), HOUR, labels=self._engine(number))
        plain.tokens(600, HOUR, labels=self._engine(0))
        never.traffic(self._all(0), HOUR, labels=self._engine(0))
        lost = [self._fires_here("AuguryNoDrafts", 50, "0", value="10"), self._silent("AuguryNoDrafts", 8)]
        if self.settings.model_free:
            lost += [self._fires_here("AuguryOneWithoutDrafts", 50, "0"), self._silent("AuguryOneWithoutDrafts", 28)]
        wrong = [self._fires_here("AuguryDraftsNeverAccepted", 30, "0", value="1.00")]
        if "AuguryAcceptanceLow" in self.alerts:
            said = rate_low if self.settings.first_alone is None else first_low
            words = ("0%", "") if said is rate_low else ("0%",)
            wrong.append(self._fires_here("AuguryAcceptanceLow", 30, "0", which=said(self.settings, *words)))
        return [
            self._test("one of three engines has lost speculation", plain, *lost),
            self._test("one of three engines drafts in vain", never, *wrong),
        ]

    def _below_plain(self) -> list[Test]:
        name, settings = "AuguryBelowPlain", self.settings
        tests = []
        for factor in (0.5, 2.0):
            if settings.ours:
                figure = factor * settings.break_even
                world = self._world().gauge("augury:speedup_estimate", f"{figure:g}", HOUR)
            else:
                figure = factor * (settings.baseline_tok_s or 0.0)
                world = World(self.labels, False).traffic(self._all(self.good), HOUR, tokens=figure * 60)
                world.gauge("vllm:num_requests_running", "1", HOUR)
            check = self._fires(name, 40, value=f"{figure:.2f}") if factor < 1 else self._silent(name, 40)
            tests.append(self._test(f"{factor:g} times plain decoding", world, self._silent(name, 12), check))
        return tests

    def _queue(self) -> Test:
        world, name = self._world(), "AuguryQueueGrows"
        world.gauge("vllm:num_requests_waiting", "0+2", HOUR)
        return self._test("the queue grows, drafts are good", world, self._silent(name, 8), self._fires(name, 40))

    def _kv(self) -> Test:
        name = "AuguryAcceptanceFallsKvClimbs"
        world = World(self.labels, self.settings.ours).course(
            [(30, self._all(self.good)), (30, self._all(self.good / 2))]
        )
        world.add("vllm:kv_cache_usage_perc", "0.3x30 0.35+0.05x10 0.85x30")
        return self._test("acceptance falls, the cache fills", world, self._silent(name, 30), self._fires(name, 52))

    def _prefix(self) -> list[Test]:
        """A day without drafts and 90 % hits, then drafts and 60 %; and the same hits with drafts all the time.

        A day takes promtool longer than all else, so both share one test if a free label can tell them apart.
        """
        name, hour = "AuguryPrefixHitsFell", DAY + HOUR + 40
        free = [label for label in self.settings.model_labels if label not in self.fixed]
        enabled, other = World(self.labels, self.settings.ours), self.labels | dict.fromkeys(free[-1:], "another")
        always = enabled if free else World(self.labels, self.settings.ours)
        for world, labels in ((enabled, self.labels), (always, other)):
            world.add("vllm:prefix_cache_queries_total", f"0+1000x{DAY + 2 * HOUR}", labels=labels)
            world.add("vllm:prefix_cache_hits_total", f"0+900x{DAY} {900 * DAY + 600}+600x{2 * HOUR}", labels=labels)
        enabled.late(self._all(self.good), DAY, 2 * HOUR)
        always.traffic(self._all(self.good), DAY + 2 * HOUR, labels=other)
        later = self._silent(name, DAY - 5), self._fires(name, hour, value="30%")
        if free:
            return [self._test("one switched speculation on a day later, another had it all the time", enabled, *later)]
        alone = self._test("it was on all the time", always, self._silent(name, hour))
        return [self._test("speculation was switched on a day later", enabled, *later), alone]

    def _down(self) -> Test:
        name = "AuguryTargetDown"
        world = World(self.labels, self.settings.ours)
        world.add("up", "1x10 0x20", target=True)
        if not self.settings.names_targets:  # targets are known by their series; ignore other exporters
            world.tokens(600, 10)
            exporter = {"job": "another", "instance": "10.0.0.9:9100"}
            world.add("up", "0x30", labels=self.labels | exporter, target=True)
        labels = {key: value for key, value in self.labels.items() if key not in ("model_name", "engine")}
        return self._test("the server goes away", world, self._silent(name, 10), self._fires(name, 20, labels))


def share(value: float) -> str:
    """A percentage as Prometheus formats it."""
    return f"{value * 100:.4g}%"
