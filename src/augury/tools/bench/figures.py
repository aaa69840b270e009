"""The arithmetic of a bench: medians with their spread, ratios paired by round, and whether tokens agree."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from augury.tools.bench.contenders import PADDED, Contender
from augury.tools.bench.peers import Tokens
from augury.tools.bench.rounds import Key, Measurements, Total

BASELINE = "transformers"


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and range of a figure over the rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        """Median, minimum and maximum."""
        return cls(median(values), min(values), max(values))


@dataclass(frozen=True, slots=True)
class ContenderFigures:
    """One contender on one prompt set at one batch size."""

    prompts: str
    batch: int
    contender: str
    mode: str  # how it ran the batch
    speed: Spread  # new tokens a second
    to_baseline: Spread | None  # over transformers plain, round by round
    to_plain: Spread | None  # over the same library without speculation
    acceptance_rate: float | None  # accepted over drafted tokens
    acceptance_length: float | None  # tokens emitted by a forward pass with a draft, the bonus token included
    rounds: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class AnswerMatch:
    """How many answers of one contender are, token by token, those of another."""

    prompts: str
    batch: int
    contender: str
    other: str
    equal: int
    total: int
    first_difference: int | None  # the lowest token position at which any answer differs

    @property
    def whole(self) -> bool:
        """Whether every answer agrees."""
        return self.equal == self.total


def ratio(ours: list[Total], theirs: list[Total] | None) -> Spread | None:
    """Ratio of the speeds, paired by round, since a slow minute slows both; None without a counterpart."""
    if not theirs or ours is theirs:
        return None
    return Spread.of([a.speed / b.speed for a, b in zip(ours, theirs, strict=False)])


def lines_of(record: Measurements, contenders: list[Contender]) -> list[ContenderFigures]:
    """The table, set by set and batch by batch, contenders in their order."""
    lines = []
    for prompts, batch in dict.fromkeys((key.prompts, key.batch) for key in record.totals):
        for contender in contenders:
            totals = record.totals.get(Key(prompts, batch, contender.name))
            if totals:
                lines.append(_line(record, contender, prompts, batch, totals))
    return lines


def _line(
    record: Measurements, contender: Contender, prompts: str, batch: int, totals: list[Total]
) -> ContenderFigures:
    drafts, drafted, accepted = (sum(getattr(t, name) for t in totals) for name in ("drafts", "drafted", "accepted"))
    return ContenderFigures(
        prompts,
        batch,
        contender.name,
        contender.mode(batch),
        speed=Spread.of([total.speed for total in totals]),
        to_baseline=ratio(totals, record.totals.get(Key(prompts, batch, BASELINE))),
        to_plain=ratio(totals, record.totals.get(Key(prompts, batch, contender.plain))),
        acceptance_rate=accepted / drafted if drafted else None,
        acceptance_length=1 + accepted / drafts if drafts else None,
        rounds=[asdict(total) | {"tokens_per_second": total.speed} for total in totals],
    )


def disturbance(record: Measurements, processors: int) -> float:
    """The share of the machine that processes outside the bench took while it measured."""
    totals = [total for every in record.totals.values() for total in every]
    seconds = sum(total.seconds for total in totals)
    return sum(total.foreign for total in totals) / (seconds * processors) if seconds else 0.0


def agreements_of(record: Measurements, contenders: list[Contender]) -> list[AnswerMatch]:
    """Compare our answers with those of transformers, and every contender with its library's plain one."""
    found = []
    for key, answers in record.answers.items():
        contender = next(c for c in contenders if c.name == key.contender)
        others = {contender.plain} if contender.batching != PADDED else set()  # padding changes the arithmetic
        if contender.make == "AuguryPeer":
            others.add(BASELINE)
        for other in sorted(others - {key.contender}):
            theirs = record.answers.get(key._replace(contender=other))
            if theirs:
                found.append(agreement(key, other, answers, theirs))
    return found


def agreement(key: Key, other: str, ours: dict[int, Tokens], theirs: dict[int, Tokens]) -> AnswerMatch:
    """Compare the answers that both have."""
    pairs = [(ours[i], theirs[i]) for i in ours if i in theirs]
    partings = [at for pair in pairs if (at := parting(*pair)) is not None]
    return AnswerMatch(*key, other, len(pairs) - len(partings), len(pairs), min(partings, default=None))


def parting(a: Tokens, b: Tokens) -> int | None:
    """The first position at which two token lists differ; None if they are equal."""
    same = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
    return min(len(a), len(b)) if same is None and len(a) != len(b) else same
