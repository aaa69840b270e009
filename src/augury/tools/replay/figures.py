"""Turns counts into figures. `accepted` excludes the token that every step emits anyway; a `length` includes it."""

from __future__ import annotations

from dataclasses import astuple, dataclass

import numpy as np

from augury.methods.registry import LOOK_UPS
from augury.tools.replay.replay import Log, ReplayedConfig
from augury.tools.replay.walk import ACCEPTED, ACCEPTED_AT, DRAFTED_AT, DRAFTS, LENGTHS, OFFERED_AT

WINDOWS = 40  # points at which figures over the trace are given
COUNTS = ("responses", "emitted_tokens", "steps", "drafted_steps", "draft_tokens", "accepted_tokens")  # of Figures
RATES = ("acceptance_rate", "acceptance_length", "share_drafted", "steps_saved")
PER_STEP = ("tokens_per_step", "drafted_per_step", "wasted_per_token")


@dataclass(frozen=True, slots=True)
class Figures:
    """Sums over some responses, and the ratios that follow from them."""

    responses: int
    emitted: int  # tokens that took a step in plain decoding
    steps: int
    drafts: int  # steps that had a draft
    drafted: int
    accepted: int

    @property
    def acceptance_rate(self) -> float:
        """Accepted tokens over drafted tokens."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def acceptance_length(self) -> float:
        """Tokens per step that had a draft, the target's own token included."""
        return 1 + self.accepted / self.drafts if self.drafts else 1.0

    @property
    def tokens_per_step(self) -> float:
        """Tokens per step, with or without a draft."""
        return self.emitted / self.steps if self.steps else 1.0

    @property
    def steps_saved(self) -> float:
        """The share of plain decoding's steps that was saved."""
        return 1 - self.steps / self.emitted if self.emitted else 0.0

    @property
    def share_drafted(self) -> float:
        """Share of steps that had a draft."""
        return self.drafts / self.steps if self.steps else 0.0

    @property
    def drafted_per_step(self) -> float:
        """Drafted tokens per step, over all steps."""
        return self.drafted / self.steps if self.steps else 0.0

    @property
    def wasted_per_token(self) -> float:
        """Rejected draft tokens per emitted token."""
        return (self.drafted - self.accepted) / self.emitted if self.emitted else 0.0

    def as_record(self) -> dict[str, float | int]:
        """Counts and ratios as JSON."""
        counts = dict(zip(COUNTS, astuple(self), strict=True))
        return counts | {name: round(getattr(self, name), 6) for name in (*RATES, *PER_STEP)}


@dataclass(frozen=True, slots=True)
class Times:
    """Drafting times in microseconds, and the replay's speed."""

    p50: float
    p99: float
    samples: int
    per_token: float  # the whole walk over the tokens it emitted
    tokens_per_second: float  # all tokens of the trace, prompts included


@dataclass(frozen=True, slots=True)
class Summary:
    """All results of one configuration."""

    name: str
    method: str
    tokens: int  # K
    total: Figures
    by_class: dict[str, Figures]
    by_turn: dict[int, Figures]
    first_tenth: Figures | None  # None with fewer than ten responses
    last_tenth: Figures | None
    course: list[Figures]
    per_request: float  # mean of each response's own acceptance length
    drafted_at: list[int]  # by position: drafts that reached it,
    offered_at: list[int]  # those of them with all earlier tokens accepted,
    accepted_at: list[int]  # and those accepted up to and including it
    lengths: list[int]  # drafts by number of accepted tokens
    times: Times
    bytes: int
    bytes_per_token: float

    @property
    def marginal(self) -> list[float]:
        """vLLM's rates: accepted up to each position, over all drafts."""
        return [count / self.total.drafts if self.total.drafts else 0.0 for count in self.accepted_at]

    @property
    def conditional(self) -> list[float]:
        """Acceptance at each position given that all before it were accepted; shorter drafts count as not accepted."""
        before = [self.total.drafts, *self.accepted_at]
        return [now / then if then else 0.0 for now, then in zip(self.accepted_at, before, strict=False)]

    @property
    def where_drafted(self) -> list[float]:
        """Conditional acceptance at each position over the drafts that had a token there."""
        pairs = zip(self.accepted_at, self.offered_at, strict=True)
        return [now / offered if offered else 0.0 for now, offered in pairs]


def summarise(contender: ReplayedConfig, log: Log) -> Summary:
    """Figures of one configuration."""
    lines, emitted = contender.lines, np.array(log.emitted, np.int64)
    count, tenth = len(lines), len(lines) // 10
    drafted = lines[:, DRAFTS] > 0
    own = 1 + lines[drafted, ACCEPTED] / lines[drafted, DRAFTS]
    curve = contender.curve[:, : _deepest(contender.curve)]
    held, tokens = contender.walker.memory
    labels, label_of = np.unique(np.array(log.labels, np.str_), return_inverse=True)
    windows = np.arange(count) * min(WINDOWS, count) // max(count, 1)

    def over(first: int, last: int) -> Figures:
        return _grouped(lines[first:last], emitted[first:last], np.zeros(last - first, np.int64))[0]

    return Summary(
        name=name_of(contender),
        method=contender.config.method,
        tokens=contender.config.num_speculative_tokens,
        total=over(0, count),
        by_class=dict(zip(labels.tolist(), _grouped(lines, emitted, label_of), strict=True)),
        by_turn=dict(enumerate(_grouped(lines, emitted, np.array(log.turns, np.int64) - 1), 1)),
        first_tenth=over(0, tenth) if tenth else None,
        last_tenth=over(count - tenth, count) if tenth else None,
        course=_grouped(lines, emitted, windows),
        per_request=float(own.mean()) if len(own) else 1.0,
        drafted_at=curve[DRAFTED_AT].tolist(),
        offered_at=curve[OFFERED_AT].tolist(),
        accepted_at=curve[ACCEPTED_AT].tolist(),
        lengths=contender.curve[LENGTHS].tolist(),
        times=_times(contender, log),
        bytes=held,
        bytes_per_token=held / tokens if tokens else 0.0,
    )


def best_of(summaries: list[Summary]) -> int:
    """The index of the summary with the fewest steps; among equals, the one that drafts least."""
    return min(range(len(summaries)), key=lambda i: (summaries[i].total.steps, summaries[i].total.drafted))


def name_of(contender: ReplayedConfig) -> str:
    """A configuration's short name."""
    config = contender.config
    settings = LOOK_UPS[config.method].words(config)
    return " ".join([config.method, f"K={config.num_speculative_tokens}", *settings])


def _grouped(lines: np.ndarray, emitted: np.ndarray, group: np.ndarray) -> list[Figures]:
    """Sums over the responses of each group; groups are numbers from 0 on."""
    sums = np.zeros((int(group.max(initial=0)) + 1, 6), np.int64)
    np.add.at(sums, group, np.column_stack([np.ones_like(emitted), emitted, lines]))
    return [Figures(*row) for row in sums.tolist()]


def _deepest(curve: np.ndarray) -> int:
    """The number of positions up to the last one ever drafted."""
    used = np.flatnonzero(curve[DRAFTED_AT])
    return int(used[-1]) + 1 if len(used) else 0


def _times(contender: ReplayedConfig, log: Log) -> Times:
    clock, seconds, emitted = contender.walker.clock, contender.seconds, sum(log.emitted)
    samples = np.array(clock.samples or [0], np.float64) / 1e3
    p50, p99 = np.percentile(samples, [50, 99]).tolist()
    per_token = seconds * 1e6 / emitted if emitted else 0.0
    return Times(p50, p99, len(clock.samples), per_token, log.tokens / seconds if seconds else 0.0)
