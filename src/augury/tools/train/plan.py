"""`augury train METHOD --plan`: what a training would cost, and what it has gained elsewhere."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import ceil
from typing import Any

from augury.tools.advise.gpus import Gpu
from augury.tools.advise.roofline import Roofline
from augury.tools.advise.shape import ModelShape
from augury.tools.knowledge.training import TrainedMethod, training_facts

MEASURED_BATCH = 64  # texts per step in the measured curves
KEPT = 0.75  # share of one draft depth's positions at which the next depth is trained
WEIGHT_BYTES = 16  # per weight in training: bf16, float32 master, two optimiser moments, gradient
LOGIT_BYTES = 2 + 4 + 4  # per logit: the target's, the head's in float32, its gradient
CHUNK = 4096  # rows whose logits are in memory at once


@dataclass(frozen=True, slots=True)
class TrainingWork:
    """The amount of work of a training run."""

    texts: int
    answer_tokens: int
    longest: int
    batch: int
    epochs: float
    depth: int
    words: int
    layers: int
    served: int = 0  # texts already answered by a server
    minutes: float = 0.0  # time limit of training; 0: none


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """The estimated cost and gain; training time is a range, since this target has not been trained before."""

    method: str
    texts: int
    tokens: int
    answer_minutes: float
    steps: int
    training_minutes: tuple[float, float]
    memory_gb: float
    fits: bool
    lengths: dict[str, float]
    k: int
    basis: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """The plan as JSON."""
        return asdict(self)


def plan(method: str, target: ModelShape, gpu: Gpu, work: TrainingWork) -> TrainingPlan:
    """Estimate the time for the answers and for training on them, the memory, and the resulting acceptance lengths."""
    facts = training_facts()
    trained = next(one for one in facts.methods if one.method == method)
    text = min(work.longest, facts.tokens_a_text * work.answer_tokens / 256)
    tokens = int(work.texts * text)
    batch = min(work.batch, work.texts)
    steps = ceil(work.epochs * (work.texts // batch))
    head = _head(trained, target, work)
    flops = batch * text * (2 * target.active + 6 * head * _guesses(trained, work))
    fast, slow = (flops / (share * gpu.bf16_tflops * 1e12) / 60 for share in _shares())  # minutes per step
    if work.minutes:
        steps = max(1, min(steps, int(work.minutes / slow)))
    memory = target.stored_bytes + WEIGHT_BYTES * head + _activations(trained, target, work, text, batch)
    seen = steps * batch / MEASURED_BATCH
    return TrainingPlan(
        method,
        work.texts,
        tokens,
        _answer_minutes(target, gpu, work, text),
        steps,
        (steps * fast, steps * slow),
        memory / 1e9,
        memory / 1e9 < 0.9 * gpu.memory_gb,
        trained.lengths(seen),
        trained.k,
        _basis(trained, work, seen),
    )


def _shares() -> tuple[float, float]:
    said = training_facts().arithmetic
    return said["fast"], said["slow"]


def _head(trained: TrainedMethod, target: ModelShape, work: TrainingWork) -> float:
    """The number of trained weights, including the output matrix."""
    layers = work.layers if trained.layers == "asked" else trained.layers
    layer = target.every_row / target.layers
    wide = trained.wide * target.hidden**2 * (1 if trained.layers else work.depth * work.layers)
    return float(layers * layer + wide + (work.words or target.vocab) * target.hidden)


def _guesses(trained: TrainedMethod, work: TrainingWork) -> float:
    """How often each position is run through the head, on average."""
    return sum(KEPT**i for i in range(work.depth)) if trained.unrolled else 1 + 0.5 * (work.depth - 1)


def _activations(trained: TrainedMethod, target: ModelShape, work: TrainingWork, text: float, batch: int) -> float:
    rows = batch * text * _guesses(trained, work)
    return rows * target.hidden * 2 * 40 + min(rows, CHUNK) * (work.words or target.vocab) * LOGIT_BYTES


def _answer_minutes(target: ModelShape, gpu: Gpu, work: TrainingWork, text: float) -> float:
    facts = training_facts()
    step = Roofline(target, gpu).step_ms(facts.answers_a_step, 1, text)
    return (work.texts - work.served) * 0.8 * text / facts.answers_a_step * max(step, facts.host_step_ms) / 60e3


def _basis(trained: TrainedMethod, work: TrainingWork, seen: float) -> tuple[str, ...]:
    limit = f"steps: at most what --minutes {work.minutes:g} leave time for at the lower rate"
    return (
        *([limit] if work.minutes else []),
        f"lengths: {_measured(trained, seen)}",
        "training: from 40 % of the GPU's published rate down to 13 %, which a target of 0.135 billion weights reached",
        f"answers: roofline of {training_facts().answers_a_step} requests at once, 80 % of a text's tokens written",
    )


def _measured(trained: TrainedMethod, seen: float) -> str:
    """The basis of the lengths, in words."""
    if not trained.curve:
        return f"no {trained.method} head of any target has been trained far enough to say; validate early"
    least, most = min(trained.curve), max(trained.curve)
    where = "" if least <= seen <= most else f"; {seen:,.0f} steps of 64 texts are outside of what was measured"
    return (
        f"SmolLM2-135M-Instruct, {trained.words or 'all'} words, {least:,} to {most:,} steps of 64 texts"
        f"{where}; another target has its own: validate early and stop early"
    )
