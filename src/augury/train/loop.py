"""Training that can be killed: everything it needs to resume is in one file, written after every validation.

All that is random in it is a function of the seed and the step, so a run that was killed and resumed has the curve of
one that was not.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from augury.config.errors import ConfigError
from augury.train.batches import Order, Teacher
from augury.train.corpus import Corpus
from augury.train.crew import Crew
from augury.train.export import name_target
from augury.train.fit import scale
from augury.train.gradients import Gradients
from augury.train.losses import LOSSES
from augury.train.masters import Masters
from augury.train.trainee import Trainee
from augury.train.validate import Acceptance, measure
from augury.train.warm_start import Origin

LOOK = 10  # steps between reads of the loss
LOWEST = 0.01  # where the rate ends, as a share of its peak
STATE, LOG, BEST = "state.pt", "log.jsonl", "best"
Held = dict[str, Corpus]  # held-out sets by name
FRESH = {"init": "", "digest": ""}  # of a run that begins with random weights
UNTOLD = {"init": "not recorded", "digest": "not recorded"}  # of a run whose state was written before it was kept


@dataclass(frozen=True, slots=True)
class Schedule:
    """The settings of a training run."""

    steps: int
    batch: int = 64  # texts a step
    accumulate: int = 1  # parts of a step, where a whole one does not fit in memory
    longest: int = 512  # tokens of a text that are used
    rate: float = 1e-3
    warm_up: float = 0.03  # of the steps
    loss: str = "kl"
    clip: float = 1.0
    every: int = 200  # steps between validations
    patience: int = 0  # stop after so many validations without a better one; 0: never
    tokens: int = 3  # K that is validated
    seed: int = 0
    minutes: float = 0.0  # stop after so many, by when the rate has decayed; 0: no limit
    temperature: float = 0.0  # of what is validated; 0: greedy


@dataclass
class Progress:
    """The progress of a run."""

    step: int = 0
    best: float = 0.0  # acceptance length, the mean of the held-out sets
    since: int = 0  # validations since the best
    loss: float = math.nan  # running
    seconds: float = 0.0
    history: list[dict[str, Any]] = field(default_factory=list)
    gate: float | None = None  # the share of drafts accepted at the gate; None: it did not run


class TrainingRun:
    """One drafter, trained in one directory."""

    def __init__(
        self,
        trainee: Trainee,
        teacher: Teacher,
        schedule: Schedule,
        target: Path,
        directory: Path,
        crew: Crew | None = None,
        origin: Origin | None = None,
    ) -> None:
        trainee.check(trainee.goal, schedule.tokens)
        self.trainee, self.teacher, self.schedule = trainee, teacher, schedule
        self.target, self.directory, self.progress = target, directory, Progress()
        self.crew = crew or Crew()
        #: what it begins with
        self.origin = {"init": str(origin.directory), "digest": origin.digest()} if origin else FRESH
        self._losses: list[Tensor] = []  # of steps since the loss was last read
        on_gpu = teacher.device.type == "cuda"
        self.masters = Masters(trainee.module, torch.bfloat16 if on_gpu else torch.float32)
        self.crew.level(self.masters.weights)
        self.masters.hand_down()
        self.gradients = Gradients(trainee, LOSSES[schedule.loss])
        self.optimiser = torch.optim.AdamW(
            self.masters.weights, schedule.rate, betas=(0.9, 0.95), weight_decay=0, fused=on_gpu
        )
        directory.mkdir(parents=True, exist_ok=True)

    def train(self, corpus: Corpus, held: Held, tick: Callable[[Progress], None] = lambda _: None) -> Progress:
        """Train until the steps, the minutes or the patience run out; continues from where a resumed run stood."""
        plan, progress = self.schedule, self.progress
        order = Order(corpus, plan.batch, plan.longest, plan.seed)
        begun = time.monotonic() - progress.seconds
        while progress.step < plan.steps and not self._is_over():
            self._losses.append(self._step(corpus, order.texts(progress.step)))
            progress.step += 1
            if self.crew.size == 1:
                progress.seconds = time.monotonic() - begun
            elif 0 in (progress.step % LOOK, progress.step % plan.every, progress.step - plan.steps):
                # All processes go by one clock: the rate and the end depend on it.
                progress.seconds = self.crew.tell(lambda: time.monotonic() - begun)
            due = progress.step % plan.every == 0 or progress.step == plan.steps or self._is_over()
            if due or len(self._losses) == LOOK:
                self._look()
            if due:
                self._validate(held)
            tick(progress)
        return progress

    def _look(self) -> None:
        """Read the losses that wait on the device: reading each at once would leave a GPU idle."""
        progress, values = self.progress, torch.stack(self._losses).tolist()
        for step, value in enumerate(values, progress.step - len(values)):
            if not math.isfinite(value):
                raise ConfigError(f"the loss is {value} at step {step}; try a lower --rate.")
            progress.loss = value if math.isnan(progress.loss) else 0.95 * progress.loss + 0.05 * value
        self._losses = []

    def _is_over(self) -> bool:
        plan, progress = self.schedule, self.progress
        late = plan.minutes > 0 and progress.seconds > 60 * plan.minutes
        return late or (plan.patience > 0 and progress.since >= plan.patience)

    def _scale(self) -> float:
        """The rate as a share of its peak; it ends with the steps or the minutes, whichever come first."""
        plan, progress = self.schedule, self.progress
        passed = progress.step / plan.steps
        if plan.minutes:
            passed = max(passed, min(1.0, progress.seconds / (60 * plan.minutes)))
        return scale(round(passed * plan.steps), plan.steps, max(1, round(plan.warm_up * plan.steps)), LOWEST)

    def _step(self, corpus: Corpus, texts: list[int]) -> Tensor:
        plan, losses = self.schedule, list[Tensor]()
        for group in self.optimiser.param_groups:
            group["lr"] = plan.rate * self._scale()
        self.gradients.clear()
        losses.append(torch.zeros((), device=self.teacher.device))
        for part in self.crew.mine(list(_parts(texts, plan.accumulate * self.crew.size))):
            batch = self.teacher.batch(corpus, part, plan.longest, self.progress.step)
            losses.append(self.gradients.add(batch, len(part) / len(texts)))
        self.masters.take_gradients()
        loss = torch.stack(losses).sum()
        self.crew.add_up([*(weight.grad for weight in self.masters.weights if weight.grad is not None), loss])
        nn.utils.clip_grad_norm_(self.masters.weights, plan.clip)
        self.optimiser.step()
        self.masters.hand_down()
        return loss

    def measure(self, held: Held) -> dict[str, Acceptance]:
        """Acceptance on every held-out set."""
        plan = self.schedule
        return {
            name: measure(self.trainee, self.teacher, texts, plan.tokens, plan.batch, plan.longest, plan.temperature)
            for name, texts in held.items()
        }

    def _validate(self, held: Held) -> None:
        """Validate, export the checkpoint if it is the best, and save the state of the run."""
        progress, found = self.progress, self.crew.tell(lambda: self.measure(held))
        mean = sum(one.length for one in found.values()) / max(1, len(found))
        better = mean > progress.best
        progress.best, progress.since = max(mean, progress.best), 0 if better else progress.since + 1
        line = {
            "step": progress.step,
            "loss": progress.loss,
            "length": {name: one.length for name, one in found.items()},
            "length_at": {name: list(one.lengths) for name, one in found.items()},  # drafts of 1, 2, ... tokens
            "by_position": {name: one.by_position for name, one in found.items()},
            "histogram": {name: list(one.histogram) for name, one in found.items()},
            "per_text": {name: one.per_text for name, one in found.items()},
        }
        progress.history.append(line)
        if not self.crew.first:
            return
        if better:
            with _room_in(self.directory):
                self.trainee.export(self.target, self.directory / BEST)
                name_target(self.directory / BEST, self.target)
        self._save()
        with (self.directory / LOG).open("a") as log:
            log.write(json.dumps(line | {"seconds": round(progress.seconds, 1)}) + "\n")

    def _save(self) -> None:
        state = {
            "weights": [weight.detach() for weight in self.masters.weights],
            "optimiser": self.optimiser.state_dict(),
            "progress": asdict(self.progress),
            "schedule": asdict(self.schedule),
            "goal": asdict(self.trainee.goal),
            "origin": self.origin,
        }
        fresh = self.directory / f"{STATE}.new"
        with _room_in(self.directory, fresh):
            torch.save(state, fresh)
            os.replace(fresh, self.directory / STATE)  # a killed process leaves the previous one intact

    def resume(self) -> bool:
        """Resume from the state in the directory; False if there is none."""
        path = self.directory / STATE
        if not path.is_file():
            return False
        state = _read(path, self.teacher.device)
        goal = asdict(self.trainee.goal)
        mine = asdict(self.schedule) | goal
        theirs = asdict(Schedule(steps=0)) | state["schedule"] | state.get("goal", goal)  # older runs do not say
        changed = [key for key in mine if mine[key] != theirs[key] and key not in ("minutes", "patience")]
        begun = state.get("origin", UNTOLD)
        if begun["digest"] not in (UNTOLD["digest"], self.origin["digest"]):
            changed.append(f"init: it began with {begun['init'] or 'random weights'}")
        if changed:
            raise ConfigError(
                f"{self.directory} was trained with other settings ({', '.join(changed)}); "
                "give the same ones, or another --out."
            )
        self.masters.load(state["weights"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.progress, self.origin = Progress(**state["progress"]), begun
        return True


@contextmanager
def _room_in(directory: Path, half: Path | None = None) -> Iterator[None]:
    """Turn errors of writing, also torch's and safetensors' of a full disk, into a ConfigError of one line."""
    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:
        if half is not None:
            half.unlink(missing_ok=True)
        left = shutil.disk_usage(directory).free
        raise ConfigError(
            f"--out {directory}: cannot be written, {left / 1e6:,.0f} MB are free ({str(error).splitlines()[0]}); make "
            "room and give the same command again."
        ) from None


def _read(path: Path, device: torch.device) -> dict[str, Any]:
    """Load the state of a run; a full disk may have left half of the file."""
    try:
        state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
        if missing := {"weights", "optimiser", "progress", "schedule"} - state.keys():
            raise KeyError(f"no {', '.join(sorted(missing))}")
    except (RuntimeError, OSError, EOFError, KeyError, AttributeError, UnpicklingError) as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise ConfigError(f"{path} is damaged ({why}); remove it to start over, or name another --out.") from None
    return state


def _parts(texts: list[int], count: int) -> Iterator[list[int]]:
    size = -(-len(texts) // count)
    for first in range(0, len(texts), size):
        yield texts[first : first + size]
