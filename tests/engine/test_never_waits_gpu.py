"""On a GPU a steady step queues work and takes in the step before: torch sees no call that waits for the device."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from augury import LLM, SamplingParams

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
SHAPE = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 4000,
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "torch_dtype": "bfloat16",
}
SPECS: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "draft_model": {"method": "draft_model", "num_speculative_tokens": 3},
    "adaptive": {"method": "draft_model", "num_speculative_tokens": 3, "adaptive": True},
    "ngram": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "prompt_lookup_min": 1},
    "suffix": {"method": "suffix", "num_speculative_tokens": 3},
    "ngram_gpu": {"method": "ngram_gpu", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "prompt_lookup_min": 1},
}
STEADY = range(12, 30)  # steps after everybody has joined and before anybody leaves


@contextmanager
def waiting_is_an_error(mode: str = "error") -> Iterator[None]:
    torch.cuda.set_sync_debug_mode(mode)
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_the_detector_detects() -> None:
    with waiting_is_an_error(), pytest.raises(RuntimeError, match="synchroniz"):
        torch.ones(1, device="cuda").item()


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("spec", SPECS)
def test_a_steady_step_never_waits(spec: str, temperature: float, tmp_path: Path) -> None:
    for name in ("target", "drafter"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(SHAPE))
    config = SPECS[spec]
    if config is not None and spec in ("draft_model", "adaptive"):
        config = {**config, "model": str(tmp_path / "drafter")}
    llm = LLM(
        str(tmp_path / "target"),
        device="cuda",
        load_format="dummy",
        skip_tokenizer_init=True,
        speculative_config=config,
        max_num_seqs=16,
        max_model_len=512,
    )
    step, done = llm.engine.step, 0

    def watched() -> Any:
        nonlocal done
        done += 1
        if done not in STEADY:
            return step()
        with waiting_is_an_error():
            return step()

    llm.engine.step = watched  # type: ignore[method-assign]
    params = [
        SamplingParams(temperature=temperature, seed=i, max_tokens=160, ignore_eos=True, detokenize=False)
        for i in range(8)
    ]
    llm.generate([{"prompt_token_ids": [3 * i + 1, 5, 9]} for i in range(8)], params, use_tqdm=False)
    assert done > STEADY.stop  # the steady steps were really watched
