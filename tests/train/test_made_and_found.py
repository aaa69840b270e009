"""What training wrote, taken by the engine for what it is: layers of heads, and the method where none is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from augury import LLM, SamplingParams
from augury.config.facts import read_facts
from augury.config.resolve import resolve
from augury.drafters.medusa import MedusaDrafter
from augury.methods.facts import TargetInfo
from augury.model.checkpoint import read_config
from augury.train.batches import Teacher
from augury.train.corpus import Corpus, answer
from augury.train.export import name_target
from augury.train.loop import BEST, Schedule, TrainingRun
from augury.train.pairs import shake
from augury.train.trainee import Goal, layers_of, trainee_of

pytestmark = pytest.mark.usefixtures("one_thread_throughout")

PROMPTS = [[65 + i, 97 + i, 65 + i % 7] for i in range(8)]
GREEDY = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
TEXTS = ["abcabcabc", "hello hello", "z"]


def run_of(toy_model: Path, out: Path, goal: Goal) -> TrainingRun:
    config = read_config(toy_model)
    teacher = Teacher(toy_model, layers_of(goal.kind, config), torch.device("cpu"), torch.float32)
    trainee = trainee_of(goal.kind)(goal, config, teacher, torch.arange(goal.vocabulary or config.vocab_size))
    return TrainingRun(trainee, teacher, Schedule(steps=2, batch=4, longest=30, every=2, rate=1e-2), toy_model, out)


@pytest.fixture(scope="module")
def plain(toy_model: Path) -> LLM:
    return LLM(str(toy_model), device="cpu", max_model_len=64)


@pytest.fixture(scope="module")
def corpus(plain: LLM) -> Corpus:
    return answer(plain, PROMPTS, 16, sampled_share=0.0)


def said(llm: LLM) -> list[list[int]]:
    return [list(out.outputs[0].token_ids) for out in llm.generate(TEXTS, GREEDY, use_tqdm=False)]


@pytest.mark.parametrize("vocabulary", [0, 200])
def test_medusa_heads_of_three_layers(
    vocabulary: int, toy_model: Path, plain: LLM, corpus: Corpus, tmp_path: Path
) -> None:
    """They are trained, all of them, and served: the engine's guesses are the trainee's."""
    run = run_of(toy_model, tmp_path, Goal("medusa", 3, vocabulary, 3))
    run.train(corpus, {"same": corpus})
    told, tensors = (
        json.loads((tmp_path / BEST / "config.json").read_text()),
        load_file(tmp_path / BEST / "model.safetensors"),
    )
    assert told["num_hidden_layers"] == 3 and told["num_heads"] == 3
    assert all(tensors[f"blocks.{head}.layers.{layer}.weight"].any() for head in range(3) for layer in range(3))

    trainee = run.trainee
    shake(trainee.module, 1, 0.2)  # two steps alone would leave them near the target's own guesses
    module = trainee.module
    module.load_state_dict({name: t.bfloat16().float() for name, t in module.state_dict().items()})  # as in the file
    trainee.export(toy_model, tmp_path / "shaken")
    spec = {"method": "medusa", "model": str(tmp_path / "shaken"), "num_speculative_tokens": 3}
    llm = LLM(str(toy_model), device="cpu", max_model_len=64, speculative_config=spec)
    assert isinstance(llm.engine.drafter, MedusaDrafter)
    heads = llm.engine.drafter.heads
    batch = run.teacher.batch(corpus, [0, 3], 30)
    hidden = batch.normed[:, :-1].flatten(0, 1)
    served = torch.stack([heads.named(scores.argmax(1)) for scores in heads.scores(hidden, 3)], dim=1)
    assert torch.equal(served, trainee.drafts(batch, 3).flatten(0, 1))
    assert len(served.unique()) > 3
    assert said(llm) == said(plain)


def test_a_trained_mtp_layer_is_known_without_its_method(
    toy_model: Path, plain: LLM, corpus: Corpus, tmp_path: Path
) -> None:
    """It is the whole target with a layer beside it; a copy of the target would draft as well, at the full price."""
    run_of(toy_model, tmp_path, Goal("mtp", 2)).train(corpus, {"same": corpus})
    name_target(tmp_path / BEST, toy_model)
    wanted = {"model": str(tmp_path / BEST), "num_speculative_tokens": 2}
    alone = resolve(wanted)
    known = resolve(wanted, TargetInfo(str(toy_model), read_facts(str(toy_model))))
    llm = LLM(str(toy_model), device="cpu", max_model_len=64, speculative_config=wanted)
    for config in (alone, known, llm.config.speculative_config):
        assert config is not None and config.method == "mtp"
    assert said(llm) == said(plain)
    assert llm.engine.stats.spec.num_drafts > 0
