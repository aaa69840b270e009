"""Advice as files of aiconfigurator and Dynamo's planner."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from augury.config.errors import ConfigError
from augury.tools.advise.advice import Advice
from augury.tools.advise.planners import for_planners
from augury.tools.advise.roofline import Roofline
from augury.tools.shared.planner_forms import Expected, aiconfigurator_file, dynamo_file, speculating

Form = Literal["text", "json", "aiconfigurator", "dynamo"]


def planner_file(advice: Advice, form: Form, target: str) -> str:
    """The planner's YAML file; its comments say where the figures come from."""
    roofline = advice.question.cost
    if not isinstance(roofline, Roofline):
        raise ConfigError(f"--format {form} plans for GPUs: give --gpu NAME instead of --cost-curve.")
    if advice.cannot:
        raise ConfigError(f"--format {form}: {advice.cannot}")
    model = _model(target, form)
    best = advice.recommended
    record = for_planners(best) if best else None
    expected = Expected(*record.values()) if record else None
    remarks = _remarks(advice, expected)
    if form == "dynamo":
        settings = {"backend": "vllm", "mode": "agg", "model_name": model, "decode_engine_num_gpu": roofline.parallel}
        return dynamo_file(settings, expected, remarks)
    task = _task(advice, roofline, model)
    tasks = {"plain": task}
    if best is not None and expected is not None:
        tasks[best.candidate.method] = {**task, **speculating(expected)}
    return aiconfigurator_file(tasks, remarks)


def _model(target: str, form: str) -> str:
    """The hub id or directory of the target; those tools do not know our short names."""
    if "/" not in target:
        raise ConfigError(f"--format {form}: name the target by its hub id or its directory; {target!r} is our name.")
    return str(Path(target).parent) if target.endswith("config.json") else target


def _task(advice: Advice, roofline: Roofline, model: str) -> dict[str, Any]:
    gpu, traffic = roofline.gpu, advice.question.traffic
    if gpu.system is None:
        raise ConfigError(f"--format aiconfigurator: it has no figures of {gpu.name}.")
    prompt = max(1, round(traffic.prompt_tokens))
    return {
        "serving_mode": "agg",
        "model_path": model,
        "system_name": gpu.system,
        "backend_name": "vllm",
        "total_gpus": roofline.parallel,
        "agg_num_gpu_candidates": [roofline.parallel],
        "isl": prompt,
        "osl": max(2, round(traffic.answer_tokens)),
        "prefix": min(prompt - 1, round(prompt * traffic.cached)),
    }


def _remarks(advice: Advice, expected: Expected | None) -> list[str]:
    best, traffic = advice.recommended, advice.question.traffic
    said = [f"Lengths: {traffic.source}."]
    if best is None or expected is None:
        return [*said, "Speculation is not advised: " + "; ".join(advice.against or ("nothing is known to pay",))]
    load = next(at.requests for at in best.by_load if at.tokens)
    said.append(f"{best.candidate.method}, K={expected.tokens} at {load} at once; {best.reason}")
    said.append(f"Acceptance: {best.candidate.source}" if best.candidate.source else "Acceptance: see augury advise")
    return said
