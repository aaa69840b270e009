"""The check before any long training: features are those of serving, and a head overfitted to one text guesses it.

A mismatch between training and serving leaves the loss looking well and the acceptance near zero; here it shows in a
minute instead of after a night. Features are compared separately, because a head that knows one text by heart needs
none; wrong positions, norms and names in the file show when the engine runs the exported head.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from augury.config.errors import ConfigError
from augury.config.sampling import SamplingParams
from augury.engine.llm import LLM
from augury.methods.registry import METHODS
from augury.train.batches import Teacher
from augury.train.corpus import Corpus
from augury.train.loop import BEST, Schedule, TrainingRun
from augury.train.study import Study
from augury.train.trainee import Trainee

ENOUGH = 0.8  # of the drafted tokens must be accepted
APART = 0.1  # relative difference allowed between features: bf16 makes a hundredth, a neighbouring layer a half
SHORT = 8  # new tokens whose features are compared
SCHEDULE = Schedule(steps=240, batch=1, longest=96, every=240, rate=2e-3, loss="ce")


def check_gate(
    trainee: Trainee,
    teacher: Teacher,
    corpus: Corpus,
    target: Path,
    tick: Callable[[int, int], None] = lambda step, steps: None,
) -> float:
    """Overfit one text through training, export and serving; returns the accepted share, or raises if it is low."""
    text = one_text(corpus, SCHEDULE.longest)
    check_features(teacher, trainee.layers, text, target)
    with tempfile.TemporaryDirectory(prefix="augury-gate-") as folder:
        schedule = replace(SCHEDULE, tokens=min(SCHEDULE.tokens, trainee.goal.depth))
        run = TrainingRun(trainee, teacher, schedule, target, Path(folder))
        run.train(text, {"itself": text}, lambda now: tick(now.step, SCHEDULE.steps))
        share = served_share(trainee.goal.kind, target, Path(folder) / BEST, text, teacher.device, schedule.tokens)
    if share < ENOUGH:
        raise ConfigError(
            f"the gate failed: only {share:.0%} of the drafts of a {trainee.goal.kind} head overfitted to one text "
            f"were accepted when served (loss {run.progress.loss:.3f}). Training and serving do not agree on what the "
            "head reads."
        )
    return share


def check_features(teacher: Teacher, layers: tuple[int, ...], text: Corpus, target: Path) -> None:
    """Refuse a teacher whose streams are not those that the engine hands to a drafter."""
    start = int(text.starts[0])
    study = Study.of(target, [text.text(0).tolist()[:start]], SHORT)
    said = study.lessons[0].tokens.tolist()
    batch = teacher.batch(Corpus.of([(said[:start], said[start:], False)], {}), [0], len(said))
    for layer, taught in zip(layers, batch.streams[0].float().cpu().chunk(len(layers), dim=1), strict=True):
        served = study.lessons[0].streams[layer]
        apart = float((taught[:-1] - served).norm() / served.norm())
        if apart > APART:
            raise ConfigError(
                f"the gate failed: the features of layer {layer} are not those that the engine hands to a drafter "
                f"(they differ by {apart:.0%}). The head would be trained on features it never reads in serving."
            )


def one_text(corpus: Corpus, longest: int) -> Corpus:
    """The greedy text whose answer is longest within so many tokens."""
    answers = (corpus.lengths.clamp(max=longest) - corpus.starts).masked_fill(corpus.sampled, 0)
    number = int(answers.argmax())
    start, whole = int(corpus.starts[number]), corpus.text(number).tolist()[:longest]
    if len(whole) - start < 8:
        raise ConfigError("no greedy answer of 8 tokens among the prompts; give others, or longer --answer-tokens.")
    return Corpus.of([(whole[:start], whole[start:], False)], {})


def served_share(kind: str, target: Path, drafter: Path, text: Corpus, device: torch.device, tokens: int) -> float:
    """The share of drafted tokens accepted when the engine answers the text's prompt with this drafter."""
    llm = served(kind, target, drafter, device, tokens, longest=len(text.tokens) + 8)
    start, whole = int(text.starts[0]), text.text(0).tolist()
    params = SamplingParams(temperature=0.0, max_tokens=len(whole) - start, ignore_eos=True)
    llm.generate([{"prompt_token_ids": whole[:start]}], params, use_tqdm=False)
    stats = llm.engine.stats.spec
    share: float = stats.num_accepted_tokens / max(1, stats.num_draft_tokens)
    return share


def served(kind: str, target: Path, drafter: Path, device: torch.device, tokens: int, longest: int) -> Any:
    """An engine with a trained drafter; a drafter that is part of its target is loaded as the target."""
    card = next(card for card in METHODS.values() if kind in card.trained)
    spec: dict[str, Any] = {"method": card.name, "num_speculative_tokens": tokens, **card.trained[kind].settings}
    model = drafter if card.weights == "target" else target
    if card.weights != "target":
        spec["model"] = str(drafter)
    return LLM(str(model), device=device.type, dtype="float32", max_model_len=longest, speculative_config=spec)
