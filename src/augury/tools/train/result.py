"""The result of a training run: its figures, their conditions, and the best drafter's profile."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import torch

from augury.config.files import write_text
from augury.methods.registry import METHODS
from augury.tools.shared.profile import make_profile
from augury.tools.train.options import TrainOptions
from augury.train.corpus import Corpus
from augury.train.loop import BEST, Schedule, TrainingRun
from augury.train.speculators import as_speculator
from augury.train.trainee import kinds

SPECULATORS = "speculators"  # the best drafter in that library's format


def write_result(order: TrainOptions, run: TrainingRun, corpus: Corpus) -> dict[str, Any]:
    """Write the result into the run's directory, and return it; only the crew's first process writes."""
    progress = run.progress
    best = max(progress.history, key=lambda line: sum(line["length"].values()), default=None)
    result: dict[str, Any] = {
        "method": order.method,
        "target": order.target,
        "drafter": str(order.out / BEST),
        "texts": len(corpus),
        "tokens": len(corpus.tokens),
        "steps": progress.step,
        "seconds": round(progress.seconds, 1),
        "gate": progress.gate,
        "k": run.schedule.tokens,
        "conditions": _conditions(order, run),
        "best": best,
        "history": progress.history,
    }
    if not run.crew.first:
        return result
    if best is not None:
        profile = _profile(order.method, run.schedule, best)
        write_text(order.out / BEST / "speculation_profile.json", json.dumps(profile, indent=2) + "\n")
        if kinds()[order.method].speculator[0]:
            as_speculator(order.out / BEST, order.target, run.schedule.tokens, order.out / SPECULATORS)
    write_text(order.out / "result.json", json.dumps(result, indent=2) + "\n")
    return result


def _conditions(order: TrainOptions, run: TrainingRun) -> dict[str, Any]:
    """The conditions of the figures."""
    device = run.teacher.device
    return {
        "prompts": ", ".join(path.name for path in order.prompts),
        "openings": order.openings,
        "from": str(order.collected or ""),
        "init": run.origin["init"],
        "vocabulary": order.vocabulary or "all",
        "depth": order.depth,
        **asdict(run.schedule),
        "processes": run.crew.size,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
    }


def _profile(method: str, schedule: Schedule, best: dict[str, Any]) -> dict[str, Any]:
    """A speculation profile over all held-out texts together."""
    histogram = [round(sum(counts)) for counts in zip(*best["histogram"].values(), strict=True)]
    accepted = [sum(histogram[i:]) for i in range(1, schedule.tokens + 1)]
    per_text = sum(best["per_text"].values()) / len(best["per_text"])
    sampling = f"temperature {schedule.temperature:g}" if schedule.temperature else "greedy"
    conditions = {"prompts": sorted(best["length"]), "sampling": sampling, "simulated": "on the target's own answers"}
    served = next(card.name for card in METHODS.values() if method in card.trained)  # p-eagle is a head of eagle3
    return make_profile(served, schedule.tokens, accepted, sum(histogram), histogram, per_text, conditions)
