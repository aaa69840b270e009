"""Acceptance lengths measured in the engine: one engine per draft shape, all prompts of a file in one batch."""

from __future__ import annotations

import gc
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import torch

from augury.config.errors import ConfigError
from augury.config.sampling import SamplingParams
from augury.config.truth import truth
from augury.engine.llm import LLM
from augury.methods.registry import METHODS
from augury.model.checkpoint import read_config
from augury.model.store import resolve
from augury.observe.stats import SpecStats
from augury.tools.shared.loading import with_installed
from augury.tools.train.options import PROMPT, Tell, device_of
from augury.tools.train.prompts import Messages, read_prompts

Spec = dict[str, Any]


@dataclass(frozen=True, slots=True)
class MeasuredWith:
    """The setting of one row of figures."""

    tokens: int  # K
    nodes: int  # of a tree; 0: a chain
    temperature: float
    rule: str

    def __str__(self) -> str:
        tree = f", a tree of {self.nodes}" if self.nodes else ""
        return f"K={self.tokens}{tree}, temperature {self.temperature:g}"


class Amounts(NamedTuple):
    """The limits of a measurement."""

    max_tokens: int
    most: int  # prompts of a file
    batch: int | None
    top_k: int  # maximum children of a tree node


def measured(
    target: str,
    spec: Spec,
    files: list[Path],
    settings: list[MeasuredWith],
    amounts: Amounts,
    device: str,
    dtype: str,
    tell: Tell,
) -> dict[str, Any]:
    """Measure every setting on every file."""
    names = [path.stem for path in files]
    if len(set(names)) < len(names):
        raise ConfigError(f"--prompts {', '.join(map(str, files))}: two files have one name; figures go by name.")
    asked = {path.stem: read_prompts([path])[: amounts.most] for path in files}
    spec, engine = with_installed(spec, target), _engine(target, amounts, device_of(device), dtype)
    wanted, lines = effective(settings, spec), list[dict[str, Any]]()
    for (tokens, nodes, rule), some in groupby(wanted, lambda one: (one.tokens, one.nodes, one.rule)):
        llm = LLM(target, **engine, speculative_config=shaped(spec, tokens, nodes, rule, amounts.top_k))
        for one in some:
            figures = dict[str, Any]()
            for name, talks in asked.items():
                done = len(lines) * len(asked) + len(figures)
                tell(f"measuring: {one} on {name}{_so_far(figures)}", done, len(wanted) * len(asked))
                figures[name] = lengths(llm, name, talks, one.temperature, amounts.max_tokens)
            lines.append(_line(llm, one, figures))
        del llm  # a GPU has room for only one
        gc.collect()
        if engine["device"] == "cuda":
            torch.cuda.empty_cache()
    tell("measuring", *[len(wanted) * len(asked)] * 2)
    told = {"target": target, "device": engine["device"], "dtype": engine["dtype"], "torch": torch.__version__}
    conditions = {**told, "max_tokens": amounts.max_tokens}
    return {
        "speculative_config": spec,
        "conditions": conditions,
        "lengths": lines,
        "notes": notes(settings, spec, lines),
    }


def _engine(target: str, amounts: Amounts, device: torch.device, dtype: str) -> dict[str, Any]:
    on_gpu = device.type == "cuda"
    return {
        "device": device.type,
        "dtype": "bfloat16" if on_gpu and dtype == "auto" else dtype,
        "max_num_seqs": amounts.batch or (256 if on_gpu else 8),
        "max_model_len": min(PROMPT + amounts.max_tokens, read_config(resolve(target)).max_position_embeddings),
        "enable_prefix_caching": False,  # no prompt repeats
    }


def _so_far(figures: dict[str, Any]) -> str:
    """The lengths of the files that this setting has been measured on, for whoever ends the run early."""
    told = ", ".join(f"{name} {figure['length']:.2f}" for name, figure in figures.items())
    return f" (so far {told})" if told else ""


def _line(llm: LLM, one: MeasuredWith, figures: dict[str, Any]) -> dict[str, Any]:
    config = llm.config.speculative_config
    assert config is not None
    return {
        "k": one.tokens,
        "tree": one.nodes,
        "temperature": one.temperature,
        "rule": config.rule,
        "drafts": "drawn" if config.samples_drafts and one.temperature else "likeliest",
        "mean": round(sum(figure["length"] for figure in figures.values()) / len(figures), 4),
        "files": figures,
    }


def effective(settings: list[MeasuredWith], spec: Spec) -> list[MeasuredWith]:
    """The distinct settings, grouped by engine: rules matter only for sampled chains, and not all methods grow trees.

    Greedy chains run on the first rule's engine.
    """
    first, treeless = settings[0].rule, chains_alone(spec)
    kept = [one for one in settings if not treeless or one.nodes == 0]
    if not kept:
        raise ConfigError(f"--tree: {treeless}; write --tree 0.")
    alike = [replace(one, rule=first) if one.nodes or not one.temperature else one for one in kept]
    return sorted(dict.fromkeys(alike), key=lambda one: (one.tokens, one.nodes, one.rule != first, one.rule))


def chains_alone(spec: Spec) -> str:
    """Why this configuration cannot draft trees; empty if it can."""
    method = str(spec.get("method"))
    if (card := METHODS.get(method)) is not None and "tree" not in card.keys:
        return f"{method} drafts chains alone"
    return f"{method} drafts chains alone with parallel_drafting" if truth(spec.get("parallel_drafting")) else ""


def notes(settings: list[MeasuredWith], spec: Spec, lines: list[dict[str, Any]]) -> list[str]:
    """What was asked for but is not among the figures, and why."""
    found = [f"--tree {nodes}: {why}." for nodes in _trees(settings) if (why := chains_alone(spec))]
    for name, figure in lines[0]["files"].items():
        if left := figure["left_out"]:
            found.append(f"{name}: {left} of {left + figure['answers']} prompts are too long and were left out.")
    return found


def _trees(settings: list[MeasuredWith]) -> list[int]:
    return sorted({one.nodes for one in settings if one.nodes})


def shaped(spec: Spec, tokens: int, nodes: int, rule: str, top_k: int) -> Spec:
    """The drafter's configuration for one engine; draft chains are sampled unless it says otherwise."""
    chain = {"draft_sample_method": "probabilistic"} if _samples(spec) else {}
    shape: Spec = {"tree": {"max_nodes": nodes, "top_k": top_k}} if nodes else chain
    fixed = {key: value for key, value in spec.items() if key != "adaptive"}  # drafts must not depend on speed
    return {**shape, **fixed, "num_speculative_tokens": tokens, "rejection_sample_method": rule}


def _samples(spec: Spec) -> bool:
    card = METHODS.get(str(spec.get("method")))
    return card is None or "draft_sample_method" in card.keys


def lengths(llm: LLM, name: str, talks: list[Messages], temperature: float, max_tokens: int) -> dict[str, Any]:
    """Answer all prompts of one file that leave room for an answer; returns the acceptance figures."""
    ids = [llm.tokenizer.chat(messages, add_generation_prompt=True) for messages in talks]
    room = (llm.config.max_model_len or PROMPT) - max_tokens
    asked = [{"prompt_token_ids": prompt} for prompt in ids if len(prompt) <= room]
    if not asked:
        raise ConfigError(too_long(name, min(map(len, ids)), room, max_tokens))
    params = [
        SamplingParams(temperature=temperature, seed=i, max_tokens=max_tokens, detokenize=False)
        for i in range(len(asked))
    ]
    llm.engine.stats.spec = spec = SpecStats()
    outputs = llm.generate(asked, params, use_tqdm=False)
    return {
        "length": round(spec.acceptance_length, 4),
        "by_position": [round(count / max(1, spec.num_drafts), 4) for count in spec.accepted_per_pos],
        "drafts": spec.num_drafts,
        "answers": len(outputs),
        "left_out": len(ids) - len(asked),
        "tokens": sum(len(output.outputs[0].token_ids) for output in outputs),
    }


def too_long(name: str, shortest: int, room: int, max_tokens: int) -> str:
    """The error for a file without any prompt that fits, caused by its prompts or by --max-tokens."""
    if room < 1:
        return f"--max-tokens {max_tokens}: no room is left for a prompt beside such an answer; write fewer."
    return (
        f"--prompts {name}: its shortest prompt has {shortest} tokens, and beside --max-tokens {max_tokens} there is "
        f"room for {room}; give shorter ones, or ask for fewer tokens."
    )
