"""What was predicted, what a server chooses and what it measures, side by side: `augury advise --check URL`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from augury.config.errors import ConfigError
from augury.methods.registry import LOOK_UPS
from augury.tools.advise.advice import Advice
from augury.tools.advise.candidates import Candidate
from augury.tools.advise.predict import At, Predictor, Speedup
from augury.tools.live.reading import Reading


@dataclass(frozen=True, slots=True)
class PredictedBesideMeasured:
    """Prediction and measurement for one server at its current load."""

    method: str
    load: int
    drafted: float  # mean tokens per draft on the server so far
    best: At  # the K that is predicted to be best
    as_drafted: At  # the prediction at the K nearest to what the server drafts
    measured: float | None  # times plain decoding, by the server's own plain steps; None if it measures none
    interval: tuple[float, float] | None

    @property
    def words(self) -> str:
        """One sentence on whether prediction and measurement agree."""
        told = self.as_drafted.decode
        if self.measured is None:
            return (
                "the server does not measure itself (only `auto` does): compare it with a plain server by "
                "`augury bench serve`"
            )
        low, high = self.interval or (self.measured, self.measured)
        if low <= told.high and told.low <= high:
            return "prediction and measurement agree within their intervals"
        lies = "higher" if told.value > self.measured else "lower"
        return f"the prediction is {lies} than what is measured: its costs are not this server's (`bench --cost-curve`)"

    def as_record(self) -> dict[str, Any]:
        """The comparison as a JSON object."""
        return {
            "method": self.method,
            "requests": self.load,
            "drafted_a_draft": round(self.drafted, 3),
            "predicted_best": _predicted(self.best),
            "predicted_as_drafted": _predicted(self.as_drafted),
            "measured": self.measured,
            "measured_interval": self.interval,
            "words": self.words,
        }


def lay_beside(advice: Advice, reading: Reading) -> PredictedBesideMeasured:
    """Compare the advice with the server's own method at its current load."""
    asked = advice.question
    drafts = reading.counters.get("drafts", 0.0)
    if not reading.speculates or not drafts:
        raise ConfigError("--check: the server has drafted nothing yet, or does not speculate: --url advises it.")
    if reading.method is None:
        raise ConfigError("--check: the server does not report its method (vLLM never does): give --method.")
    line = next((one for one in advice.lines if one.candidate.method in _alike(reading.method)), None)
    if line is None:
        raise ConfigError(f"--check: {reading.method} is not among the methods that advise weighs for this target.")
    acceptance, drafting = _known(line.candidate)
    predictor, load = Predictor(asked.cost, asked.traffic), max(1, round(asked.traffic.running or 1))
    drafted = reading.counters.get("drafted", 0.0) / drafts
    tokens = min(max(acceptance.lengths), max(1, round(drafted)))
    return PredictedBesideMeasured(
        str(reading.method),
        load,
        drafted,
        predictor.best(acceptance, drafting, load),
        predictor.at(acceptance, drafting, load, tokens),
        reading.speed_up if reading.speed_up_range else None,
        reading.speed_up_range,
    )


def _alike(method: str) -> tuple[str, ...]:
    """The method and its twins: look-ups that draft alike, of which the advice names the one that suits the release."""
    own = LOOK_UPS.get(method)
    first = (own.twin_of if own else None) or method
    return (method, first, *(name for name, one in LOOK_UPS.items() if one.twin_of == first))


def show_beside(console: Console, found: PredictedBesideMeasured) -> None:
    """Print a table of three rows and a conclusion."""
    table = Table("", "K", "times plain", box=None)
    table.add_row("predicted best", str(found.best.tokens), _shown(found.best.decode))
    table.add_row("predicted for what it drafts", str(found.as_drafted.tokens), _shown(found.as_drafted.decode))
    measured = "not measured"
    if found.measured is not None and found.interval is not None:
        measured = f"{found.measured:.2f} ({found.interval[0]:.2f} to {found.interval[1]:.2f})"
    table.add_row("measured by the server", f"{found.drafted:.1f}", measured)
    console.print(f"[bold]{found.method}[/bold] at {found.load} requests", table, found.words, sep="\n", soft_wrap=True)


def _known(candidate: Candidate) -> tuple[Any, Any]:
    if candidate.acceptance is None or candidate.drafting is None:
        raise ConfigError(f"--check: nothing is known of {candidate.method} to predict from; {candidate.missing}.")
    return candidate.acceptance, candidate.drafting


def _predicted(at: At) -> dict[str, Any]:
    return {
        "tokens": at.tokens,
        "times_plain": round(at.decode.value, 4),
        "low": round(at.decode.low, 4),
        "high": round(at.decode.high, 4),
    }


def _shown(speed: Speedup) -> str:
    return f"{speed.value:.2f} ({speed.low:.2f} to {speed.high:.2f})"
