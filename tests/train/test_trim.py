"""A drafter with fewer words: the rows of its output matrix that the target says most often."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from augury import LLM, SamplingParams
from augury.config.errors import ConfigError
from augury.model.checkpoint import read_config
from augury.train.batches import Teacher
from augury.train.corpus import Corpus, answer
from augury.train.trainee import Goal, layers_of, trainee_of
from augury.train.trim import answers_of, trim

PROMPTS = [[65 + i % 26, 97 + i % 13, 65 + i % 7, 99] for i in range(8)]


@pytest.fixture(scope="module")
def corpus(toy_model: Path) -> Corpus:
    return answer(LLM(str(toy_model), device="cpu", max_model_len=64), PROMPTS, 24)


@pytest.fixture
def drafter(toy_model: Path, tmp_path: Path) -> Path:
    config = read_config(toy_model)
    teacher = Teacher(toy_model, layers_of("eagle3", config), torch.device("cpu"), torch.float32)
    made = trainee_of("eagle3")(Goal("eagle3", 2, 128), config, teacher, torch.arange(0, 256, 2))
    made.export(toy_model, tmp_path / "whole")
    return tmp_path / "whole"


def test_the_words_said_most_often_stay(drafter: Path, corpus: Corpus, toy_model: Path) -> None:
    out = drafter.parent / "small"
    told = trim(drafter, corpus, 48, out)
    before, after = load_file(drafter / "model.safetensors"), load_file(out / "model.safetensors")
    words, kept = torch.arange(128) + before["d2t"], torch.arange(48) + after["d2t"]
    often = torch.bincount(answers_of(corpus), minlength=len(before["t2d"]))
    left = words[~torch.isin(words, kept)]
    assert torch.isin(kept, words).all() and often[kept].min() >= often[left].max()
    assert torch.equal(after["lm_head.weight"], before["lm_head.weight"][torch.isin(words, kept)])
    assert torch.equal(after["t2d"].nonzero()[:, 0], kept) and told["words"] == 48 and told["before"] == 128
    spec = {"method": "eagle3", "model": str(out), "num_speculative_tokens": 2}
    params = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)
    texts = [
        LLM(str(toy_model), device="cpu", max_model_len=64, speculative_config=speculation).generate(
            [{"prompt_token_ids": PROMPTS[0]}], params, use_tqdm=False
        )[0].outputs[0].token_ids
        for speculation in (None, spec)
    ]  # fmt: skip
    assert texts[0] == texts[1]


def test_what_cannot_be_trimmed_is_told(drafter: Path, corpus: Corpus, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--words 128: .* has 128; write fewer"):
        trim(drafter, corpus, 128, tmp_path / "x")
    with pytest.raises(ConfigError, match="no drafter that can be read"):
        trim(tmp_path / "nowhere", corpus, 16, tmp_path / "x")
