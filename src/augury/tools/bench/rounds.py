"""The run itself: round by round, prompt by prompt, contender by contender, so that noise hits all alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from augury.tools.bench.contenders import PADDED
from augury.tools.bench.peers import Ran, Tokens
from augury.tools.bench.worker import ContenderProcess, PeerError
from augury.tools.shared.pulse import time_text

WARM_UP_TOKENS = 24


class Key(NamedTuple):
    """What a figure belongs to."""

    prompts: str  # name of the set
    batch: int
    contender: str


@dataclass(slots=True)
class Total:
    """What one contender did in one round, summed over the prompts of a set."""

    seconds: float = 0.0
    tokens: int = 0
    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    foreign: float = 0.0

    def add(self, ran: Ran) -> None:
        """Count one more run."""
        self.seconds += ran.seconds
        self.tokens += ran.tokens
        self.drafts += ran.drafts
        self.drafted += ran.drafted
        self.accepted += ran.accepted
        self.foreign += ran.foreign

    @property
    def speed(self) -> float:
        """New tokens a second, prefill included."""
        return self.tokens / self.seconds


@dataclass(slots=True)
class Measurements:
    """Everything measured: totals by round, and the tokens of the first round by prompt number."""

    totals: dict[Key, list[Total]] = field(default_factory=dict)
    answers: dict[Key, dict[int, Tokens]] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)  # contenders that failed, and why

    def add(self, key: Key, round_number: int, group: list[int], ran: Ran) -> None:
        """Count a run; tokens are kept once, later rounds only add time."""
        totals = self.totals.setdefault(key, [])
        while len(totals) <= round_number:
            totals.append(Total())
        totals[round_number].add(ran)
        self.answers.setdefault(key, {}).update(zip(group, ran.outputs, strict=True) if round_number == 0 else ())

    def drop(self, contender: str, reason: str) -> None:
        """Discard the figures of a contender that failed, and record why."""
        self.broken[contender] = reason
        for figures in (self.totals, self.answers):
            for key in [key for key in figures if key.contender == contender]:
                del figures[key]


class Call(NamedTuple):
    """One call to one contender."""

    worker: ContenderProcess
    group: list[int]  # prompt numbers
    batches: list[int]  # the batch sizes it counts for


def groups_of(count: int, batch: int) -> list[list[int]]:
    """Prompt numbers in full groups of `batch`; a set smaller than one group is repeated to fill it."""
    if count < batch:
        return [[i % count for i in range(batch)]]
    return [list(range(start, start + batch)) for start in range(0, count - batch + 1, batch)]


def jobs_of(workers: list[ContenderProcess], count: int, batches: list[int], turn: int) -> list[Call]:
    """One round over `count` prompts.

    A contender that takes prompts one after another does the same at any batch size, so its run of a prompt counts for
    all of them. The order of the contenders rotates from prompt to prompt, so that none always follows the same
    one.
    """
    jobs = []
    for i in range(count):
        holding = [b for b in batches for group in groups_of(count, b) for n in group if n == i]
        for worker in _turned(workers, turn + i):
            if worker.contender.in_turn and holding:
                jobs.append(Call(worker, [i], holding))
            elif not worker.contender.in_turn and worker.contender.batching != PADDED and 1 in batches:
                jobs.append(Call(worker, [i], [1]))
    together = [worker for worker in workers if not worker.contender.in_turn]
    for batch in (b for b in batches if b > 1):
        for g, group in enumerate(groups_of(count, batch)):
            jobs += [Call(worker, group, [batch]) for worker in _turned(together, turn + g)]
    return jobs


def _turned(workers: list[ContenderProcess], turn: int) -> list[ContenderProcess]:
    at = turn % max(1, len(workers))
    return workers[at:] + workers[:at]


@dataclass(slots=True)
class Bench:
    """A bench in progress."""

    workers: list[ContenderProcess]
    prompts: dict[str, list[Tokens]]  # token ids by set
    batches: list[int]
    max_tokens: int
    tick: Callable[[str], None]  # told what is about to run
    record: Measurements = field(default_factory=Measurements)
    forecast: Callable[[str], None] = lambda _: None  # told how long the run will take, once that is known
    _pace: dict[tuple[str, int], float] = field(default_factory=dict)  # seconds a token, by contender and batch

    def size(self, rounds: int) -> int:
        """How many times `tick` will be called."""
        each = sum(len(jobs_of(self.workers, len(prompts), self.batches, 0)) for prompts in self.prompts.values())
        return rounds * each + len(self.workers)

    def run(self, rounds: int) -> Measurements:
        """Warm up every contender, then measure."""
        for worker in self.workers:
            self.tick(f"warming up {worker.contender.name}")
            self._warm_up(worker)
        self.forecast(self._estimate(rounds))
        for number in range(rounds):
            for name, prompts in self.prompts.items():
                for job in jobs_of(self.workers, len(prompts), self.batches, number):
                    self.tick(f"round {number + 1} of {rounds}, {name}: {job.worker.contender.name}")
                    self._measure(job, name, number)
        return self.record

    def _warm_up(self, worker: ContenderProcess) -> None:
        """Generate a few tokens of each set at each batch size: kernels are compiled for the shapes they meet."""
        for prompts in self.prompts.values():
            sizes = {1} if worker.contender.in_turn else {1, *self.batches}
            for size in sorted(sizes):
                group = groups_of(len(prompts), size)[0]
                ran = self._try(worker, [prompts[i] for i in group], min(WARM_UP_TOKENS, self.max_tokens))
                if ran is not None:
                    self._pace[worker.contender.name, size] = ran.seconds / max(1, ran.tokens)

    def _estimate(self, rounds: int) -> str:
        """How long the rounds will take at the pace of the warm-up, which includes compiling and so is too slow."""
        jobs = [job for every in self.prompts.values() for job in jobs_of(self.workers, len(every), self.batches, 0)]
        paces = [self._pace.get((job.worker.contender.name, len(job.group)), 0.0) * len(job.group) for job in jobs]
        seconds = rounds * self.max_tokens * sum(paces)
        return f"{rounds * len(jobs)} runs of {self.max_tokens} tokens: at most about {time_text(seconds)}"

    def _measure(self, job: Call, name: str, number: int) -> None:
        prompts = self.prompts[name]
        ran = self._try(job.worker, [prompts[i] for i in job.group], self.max_tokens)
        if ran is not None:
            for batch in job.batches:
                self.record.add(Key(name, batch, job.worker.contender.name), number, job.group, ran)

    def _try(self, worker: ContenderProcess, prompts: list[Tokens], max_tokens: int) -> Ran | None:
        """Run a contender; one that fails is recorded and left out, and the others continue."""
        name = worker.contender.name
        if name in self.record.broken:
            return None
        try:
            ran = worker.run(prompts, max_tokens)
            if ran.tokens != max_tokens * len(prompts):  # cut short by a full context: no longer the same work
                raise PeerError(f"gave {ran.tokens} new tokens instead of {max_tokens * len(prompts)}")
            return ran
        except PeerError as error:
            self.record.drop(name, str(error))
            return None
