"""A whole training run: prompts, answers, gate, steps, and the result."""

from __future__ import annotations

import math
from functools import partial
from statistics import mean
from typing import Any

import torch

from augury.config.errors import ConfigError
from augury.config.files import make_directory
from augury.model.checkpoint import read_config
from augury.model.load import has_plain_layers
from augury.model.store import resolve
from augury.tools.train.alone import alone_in
from augury.tools.train.kinds import check_size, usual_layers
from augury.tools.train.options import Tell, TrainOptions, device_of
from augury.tools.train.result import write_result
from augury.tools.train.texts import texts
from augury.train.batches import Teacher
from augury.train.corpus import SHORTEST, Corpus
from augury.train.crew import Crew
from augury.train.gate import check_gate
from augury.train.loop import Progress, Schedule, TrainingRun
from augury.train.trainee import Goal, layers_of, trainee_of
from augury.train.trim import said_most
from augury.train.warm_start import Origin


def run_training(
    order: TrainOptions, settings: dict[str, Any], epochs: float, gate: bool, tell: Tell
) -> dict[str, Any]:
    """Train a drafter and return the result, with the figures of the best checkpoint."""
    goal = Goal(order.method, order.depth, order.vocabulary, order.layers or usual_layers(order.method))
    trainee_of(order.method).check(goal, settings["tokens"])
    _check(order, settings["temperature"])
    with alone_in(order.out):
        return _trained(order, goal, settings, epochs, gate, tell)


def _trained(
    order: TrainOptions, goal: Goal, settings: dict[str, Any], epochs: float, gate: bool, tell: Tell
) -> dict[str, Any]:
    kind, directory = trainee_of(order.method), resolve(order.target, quiet=True)
    config = read_config(directory)
    origin = Origin(order.init, directory) if order.init is not None else None
    crew = Crew.join()
    device = device_of(order.device)
    corpus, held = crew.tell(lambda: texts(order, directory, settings["longest"], settings["temperature"], tell))
    if not len(corpus):
        raise ConfigError(
            f"--prompts: every answer of the target is shorter than {SHORTEST} tokens; use other prompts."
        )
    teacher = Teacher(
        directory, layers_of(order.method, config), device, torch.bfloat16 if device.type == "cuda" else torch.float32
    )
    words = chosen_words(corpus, config, order.vocabulary, origin)
    steps = math.ceil(epochs * (len(corpus) // min(settings["batch"], len(corpus))))
    trainee = kind(goal, config, teacher, words)
    if origin is not None:
        origin.give(trainee)
    run = TrainingRun(trainee, teacher, Schedule(steps=steps, **settings), directory, order.out, crew, origin)
    if not run.resume() and gate:
        doing = "gate: overfitting one answer"
        tell(doing, 0, 1)
        fresh = kind(goal, config, teacher, words)
        run.progress.gate = crew.tell(lambda: check_gate(fresh, teacher, corpus, directory, partial(tell, doing)))
    run.train(corpus, held, lambda now: tell(_line(now), now.step, steps))
    crew.leave()
    return write_result(order, run, corpus)


def _check(order: TrainOptions, heat: float) -> None:
    """Refuse a run that cannot be trained or written, before the target spends hours on answers."""
    config = read_config(resolve(order.target, quiet=True))
    if not has_plain_layers(config):
        raise ConfigError(f"--target {order.target}: heads are trained for Llama, Mistral, Qwen2 and Qwen3 models.")
    check_size(order.method, order.layers, order.vocabulary, config.num_hidden_layers, config.vocab_size)
    if heat and order.collected is not None:
        raise ConfigError(
            "--temperature: what a server collected was sampled with its clients' settings; leave it out."
        )
    for option, path in (("--out", order.out), ("--answers", order.answers)):
        if path is not None:
            make_directory(path, option)


def _line(now: Progress) -> str:
    loss = "" if math.isnan(now.loss) else f": loss {now.loss:.3f}"
    lengths = now.history[-1]["length"].values() if now.history else ()
    return "training" + loss + (f", length {mean(lengths):.2f}" if lengths else "")


def chosen_words(corpus: Corpus, config: Any, count: int, origin: Origin | None) -> torch.Tensor:
    """All token ids, or the answers' `count` most frequent, sorted; a drafter to continue keeps its own first."""
    everything = torch.arange(config.vocab_size)
    if not count:
        return everything
    own = origin.words if origin is not None and origin.words is not None else everything[:0]
    if len(own) >= count:
        return own[said_most(corpus, count, own, config.vocab_size)]
    others = everything[torch.isin(everything, own, invert=True)]
    more = others[said_most(corpus, count - len(own), others, config.vocab_size)]
    return torch.cat([own, more]).sort().values
