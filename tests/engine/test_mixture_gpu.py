"""Mixtures of experts on a GPU: Qwen3-30B-A3B's layer against the reference, captured, and in the engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from augury import LLM, SamplingParams
from augury.kernels import experts as reference
from augury.model.dense import Dense

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
EXPERTS, CHOSEN, HIDDEN, INNER = 128, 8, 2048, 768
ROWS = (1, 2, 8, 32, 128, 300, 1100)  # all tiles
SHAPE: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "architectures": ["Qwen3MoeForCausalLM"],
    "vocab_size": 8000,
    "hidden_size": 512,
    "intermediate_size": 1024,
    "moe_intermediate_size": 256,
    "num_experts": 32,
    "num_experts_per_tok": 4,
    "norm_topk_prob": True,
    "mlp_only_layers": [0],
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "torch_dtype": "bfloat16",
}
PROMPTS = [[(7 * i + j * j) % 7999 for j in range(5 + 23 * i)] for i in range(12)]
NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3, "prompt_lookup_min": 1}


@pytest.fixture(scope="module")
def layer() -> tuple[Tensor, Tensor, Tensor]:
    """A router, and experts."""
    random = torch.Generator("cuda").manual_seed(1)

    def make(*shape: int) -> Tensor:
        made = torch.randn(*shape, device="cuda", generator=random, dtype=torch.bfloat16)
        return made * shape[-1] ** -0.5

    return make(EXPERTS, HIDDEN), make(EXPERTS, 2 * INNER, HIDDEN), make(EXPERTS, HIDDEN, INNER)


def given(rows: int) -> Tensor:
    return torch.randn(
        rows, HIDDEN, device="cuda", dtype=torch.bfloat16, generator=torch.Generator("cuda").manual_seed(rows)
    )


def run(x: Tensor, layer: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    from augury.kernels import experts_triton, route_triton

    router, gate_up, down = layer
    shares, chosen = route_triton.route(x.float() @ router.float().T, CHOSEN, True)
    return experts_triton.run_experts(x, gate_up, down, chosen, shares)


@pytest.mark.parametrize("rows", ROWS)
def test_a_layer_is_what_the_reference_says(rows: int, layer: tuple[Tensor, Tensor, Tensor]) -> None:
    x, (router, gate_up, down) = given(rows), layer
    shares, chosen = reference.route(x.float() @ router.float().T, CHOSEN, True)
    want = reference.run_experts(x, gate_up, down, chosen, shares)
    assert (run(x, layer) - want).abs().max() < 0.02 * want.abs().max()


def test_rows_have_their_own_bits_in_every_tile(layer: tuple[Tensor, Tensor, Tensor]) -> None:
    router, gate_up, down = layer
    from augury.kernels import experts_triton

    x = given(max(ROWS))
    shares, chosen = reference.route(x.float() @ router.float().T, CHOSEN, True)
    whole = experts_triton.run_experts(x, gate_up, down, chosen.contiguous(), shares.contiguous())
    for rows in ROWS:
        part = experts_triton.run_experts(
            x[-rows:], gate_up, down, chosen[-rows:].contiguous(), shares[-rows:].contiguous()
        )
        assert torch.equal(part, whole[-rows:])


@pytest.mark.parametrize("rows", [1, 8, 300])
def test_a_captured_layer_follows_its_rows_and_never_waits(rows: int, layer: tuple[Tensor, Tensor, Tensor]) -> None:
    """The graph was captured with rows that chose other experts."""
    x = given(rows)
    run(x, layer)
    torch.cuda.set_sync_debug_mode("error")
    try:
        run(x, layer)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = run(x, layer)
    for seed in range(3):
        x.copy_(given(rows + 1000 * seed + 1)[:rows])
        graph.replay()
        assert torch.equal(out, run(x.clone(), layer))
    x.fill_(1.0)  # everybody chooses the same experts
    graph.replay()
    assert torch.equal(out, run(x.clone(), layer))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("mixture")
    (directory / "config.json").write_text(json.dumps(SHAPE))
    return directory


def answers(model: Path, count: int = len(PROMPTS), **settings: Any) -> list[list[int]]:
    usual: dict[str, Any] = {"dtype": "bfloat16", "load_format": "dummy", "max_model_len": 512, "max_num_seqs": 12}
    llm = LLM(str(model), device="cuda", skip_tokenizer_init=True, **{**usual, **settings})
    target = llm.engine.runner.target
    assert isinstance(target, Dense) and target.capturable
    params = [
        SamplingParams(temperature=0.9 * (i % 2), seed=i, max_tokens=40, ignore_eos=True, detokenize=False)
        for i in range(count)
    ]
    outputs = llm.generate([{"prompt_token_ids": p} for p in PROMPTS[:count]], params, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


def test_captured_passes_say_what_eager_ones_say(model: Path) -> None:
    assert answers(model, exact=True) == answers(model, exact=True, enforce_eager=True)


def test_exact_mode_holds_for_mixtures(model: Path) -> None:
    """Alone, together, in small chunks, preempted, with drafts: the same tokens, greedy and drawn."""
    whole = answers(model, exact=True)
    assert whole == answers(model, exact=True, speculative_config=NGRAM)
    assert whole == answers(model, exact=True, max_num_seqs=3, speculative_config=NGRAM)
    assert whole == answers(model, exact=True, max_num_batched_tokens=48)
    assert whole == answers(model, exact=True, num_gpu_blocks_override=70, max_model_len=400)
    assert whole[:1] == answers(model, 1, exact=True)
