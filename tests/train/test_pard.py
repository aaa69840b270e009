"""PARD in training, held to transformers: masks are tokens behind the text, and what they are embedded as is learnt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from augury.model.checkpoint import read_config
from augury.train.batches import Batch, Teacher
from augury.train.corpus import Corpus
from augury.train.loop import Schedule, TrainingRun
from augury.train.spare_token import spare_token
from augury.train.trainee import Goal, layers_of, trainee_of
from augury.train.warm_start import Origin

pytestmark = pytest.mark.usefixtures("one_thread_throughout")
TEXTS = Corpus.of([([65, 66, 67 + i], [70 + (i * j) % 40 for j in range(16)], False) for i in range(4)], {})
GUESSES = 4


def run_of(toy_model: Path, out: Path, kind: str) -> TrainingRun:
    config = read_config(toy_model)
    teacher = Teacher(toy_model, layers_of(kind, config), torch.device("cpu"), torch.float32)
    trainee = trainee_of(kind)(Goal(kind, GUESSES, 0, 1), config, teacher, torch.arange(config.vocab_size))
    return TrainingRun(trainee, teacher, Schedule(steps=8, batch=4, every=8, rate=1e-2), toy_model, out)


def written(model: Any, batch: Batch, mask: int) -> torch.Tensor:
    """Greedy drafts of transformers' own model: each beginning of a text with masks behind it, one at a time."""
    rows = []
    for row in range(batch.tokens.shape[1] - 1):
        text = torch.cat([batch.tokens[:, : row + 2], torch.full((len(batch.tokens), GUESSES - 1), mask)], dim=1)
        rows.append(model(input_ids=text).logits[:, -GUESSES:].argmax(2))
    return torch.stack(rows, dim=1)


@torch.no_grad()
def test_what_is_exported_drafts_what_was_trained(toy_model: Path, tmp_path: Path) -> None:
    run = run_of(toy_model, tmp_path, "pard")
    with torch.enable_grad():
        run.train(TEXTS, {"a": TEXTS})
    run.trainee.export(toy_model, tmp_path / "pard")
    told = json.loads((tmp_path / "pard/config.json").read_text())
    assert told["spd_type"] == "pard" and told["pard_token"] == 259 and told["num_hidden_layers"] == 1
    model: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "pard", dtype=torch.float32)
    batch = run.teacher.batch(TEXTS, [0, 1, 2, 3], 64)
    for tensor in run.trainee.module.parameters():  # a file holds matrices in half precision
        tensor.copy_(tensor.bfloat16() if tensor.dim() == 2 else tensor)
    assert (run.trainee.drafts(batch, GUESSES) == written(model, batch, 259)).float().mean() > 0.98  # but for ties
    before, after = load_file(toy_model / "model.safetensors"), load_file(tmp_path / "pard/model.safetensors")
    name = "model.embed_tokens.weight"
    moved = (before[name].bfloat16().float() - after[name].float()).abs().amax(1) > 0
    assert moved.nonzero().flatten().tolist() == [259]  # all other tokens are the target's


def test_it_may_begin_as_a_draft_model(toy_model: Path, tmp_path: Path) -> None:
    """A small model that drafts one by one is where the paper begins."""
    draft = run_of(toy_model, tmp_path / "a", "draft_model")
    draft.train(TEXTS, {"a": TEXTS})
    draft.trainee.export(toy_model, tmp_path / "draft")
    pard = run_of(toy_model, tmp_path / "b", "pard")
    batch = pard.teacher.batch(TEXTS, [0, 1, 2, 3], 64)
    Origin(tmp_path / "draft", toy_model).give(pard.trainee)
    first = pard.trainee.drafts(batch, GUESSES)[..., 0]
    assert (first == draft.trainee.drafts(batch, 1)[..., 0]).float().mean() > 0.95  # but for rounding in the file


@pytest.mark.parametrize(("rows", "template", "spare"), [(300, "", 299), (260, "", 259), (260, "<z>", 258)])
def test_a_mask_is_a_token_that_no_text_holds(
    rows: int, template: str, spare: int, toy_model: Path, tmp_path: Path
) -> None:
    """A row behind the vocabulary, or a special token that nothing writes."""
    tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(toy_model)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<x>", "<y>", "<z>"]})
    tokenizer.chat_template = "{{ messages }}<eos>" + template
    tokenizer.save_pretrained(tmp_path)
    config = json.loads((toy_model / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"vocab_size": rows}))
    assert spare_token(tmp_path, rows) == spare
