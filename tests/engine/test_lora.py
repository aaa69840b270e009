"""LoRA adapters: several in one batch say what each says alone, with speculation and without."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lora_files import merged, write_adapter

from augury import LLM, LoRARequest, SamplingParams
from augury.config.errors import ConfigError
from augury.kernels import low_rank
from augury.kernels.low_rank import LowRankStack
from augury.kernels.numba_ops import NumbaOps
from augury.model.errors import ModelError

NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1, "prompt_lookup_max": 3}
PROMPTS = ["abcabcabcabc", "the quick brown fox", "one two one two one", "0123456789", "abcabcabcabc"]
GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
pytestmark = pytest.mark.usefixtures("one_thread_throughout")


@pytest.fixture(scope="module")
def adapters(toy_model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Four of different ranks, modules and scalings."""
    home = tmp_path_factory.mktemp("adapters")
    return [
        write_adapter(toy_model, home / "a", 1),
        write_adapter(toy_model, home / "b", 2, rank=8, modules=("q_proj", "v_proj"), size=2.0),
        write_adapter(toy_model, home / "c", 3, rank=2, use_rslora=True),
        write_adapter(toy_model, home / "d", 4, rank=1, modules=("gate_proj", "down_proj", "o_proj"), size=2.0),
    ]


@pytest.fixture(scope="module")
def alone(toy_model: Path, adapters: list[Path], tmp_path_factory: pytest.TempPathFactory) -> list[list[list[int]]]:
    """What the base and each adapter say, one by one, each merged into a model of its own."""
    home = tmp_path_factory.mktemp("merged")
    models = [toy_model, *(merged(toy_model, path, home / path.name) for path in adapters)]
    return [tokens(LLM(str(model), dtype="float32"), PROMPTS) for model in models]


def tokens(llm: LLM, prompts: list[str], loras: Any = None) -> list[list[int]]:
    return [one.outputs[0].token_ids for one in llm.generate(prompts, GREEDY, use_tqdm=False, lora_request=loras)]


def requests(adapters: list[Path]) -> list[LoRARequest | None]:
    return [None, *(LoRARequest(path.name, i + 1, str(path)) for i, path in enumerate(adapters))]


def engine(model: Path, spec: dict[str, Any] | None = None, **more: Any) -> LLM:
    return LLM(str(model), dtype="float32", enable_lora=True, speculative_config=spec, **more)


@pytest.mark.parametrize("spec", [None, NGRAM, {"method": "suffix"}], ids=["plain", "ngram", "suffix"])
def test_a_mixed_batch_says_what_each_says_alone(
    toy_model: Path, adapters: list[Path], alone: list[list[list[int]]], spec: dict[str, Any] | None
) -> None:
    llm = engine(toy_model, spec)
    wanted = requests(adapters)
    assert len({tuple(said[0]) for said in alone}) == 5, "the adapters change what is said"
    for turn in range(len(wanted)):
        loras = wanted[turn:] + wanted[:turn]
        expected = [alone[wanted.index(lora)][i] for i, lora in enumerate(loras)]
        assert tokens(llm, PROMPTS, loras) == expected
    if spec is not None:
        assert llm.engine.stats.spec.num_accepted_tokens > 0
    assert tokens(llm, PROMPTS) == alone[0]


def test_peft_says_the_same(toy_model: Path, adapters: list[Path], alone: list[list[list[int]]]) -> None:
    peft = pytest.importorskip("peft", reason="peft is not installed")
    from transformers import AutoModelForCausalLM

    llm = engine(toy_model)
    for number, (path, lora) in enumerate(zip(adapters, requests(adapters)[1:], strict=True)):
        base = AutoModelForCausalLM.from_pretrained(toy_model, dtype=torch.float32)
        base.generation_config.eos_token_id = None  # as ignore_eos: a min_new_tokens would forbid the token itself
        model = peft.PeftModel.from_pretrained(base, str(path)).eval()
        for i, prompt in enumerate(PROMPTS):
            ids = torch.tensor([llm.tokenizer.encode(prompt)])
            with torch.no_grad():
                said = model.generate(input_ids=ids, max_new_tokens=24, do_sample=False)
            assert said[0, ids.shape[1] :].tolist() == alone[number + 1][i] == tokens(llm, [prompt], lora)[0]


def test_cached_prefixes_are_an_adapters_own(toy_model: Path, adapters: list[Path]) -> None:
    llm = engine(toy_model, block_size=4)
    first, second = requests(adapters)[1:3]
    cached = [
        llm.generate([PROMPTS[0] * 3], GREEDY, use_tqdm=False, lora_request=lora)[0].num_cached_tokens
        for lora in (None, first, second, first, None)
    ]
    assert cached[:3] == [0, 0, 0] and cached[3] > 0 and cached[4] > 0


def test_an_adapter_loaded_anew_under_its_name_is_another(
    toy_model: Path, adapters: list[Path], alone: list[list[list[int]]]
) -> None:
    llm = engine(toy_model, block_size=4)
    assert tokens(llm, PROMPTS, LoRARequest("x", 1, str(adapters[0]))) == alone[1]
    assert tokens(llm, PROMPTS, LoRARequest("x", 1, str(adapters[1]))) == alone[2]


def test_places_are_given_to_whoever_needs_one(
    toy_model: Path, adapters: list[Path], alone: list[list[list[int]]]
) -> None:
    """Two places for four adapters: the one used longest ago goes; one that is in use stays."""
    llm = engine(toy_model, max_cpu_loras=2)
    for number, lora in enumerate(requests(adapters)[1:] * 2):
        assert tokens(llm, PROMPTS[:2], lora) == alone[number % 4 + 1][:2]
    assert llm.loras is not None and len(llm.loras.names) == 2
    outputs = llm.generate(PROMPTS[:4], GREEDY, use_tqdm=False, lora_request=requests(adapters)[1:])
    errors = [output.error for output in outputs]
    assert errors[:2] == [None, None] and all(error and "max_cpu_loras" in error for error in errors[2:])


def test_unloading_waits_for_those_who_have_it(
    toy_model: Path, adapters: list[Path], alone: list[list[list[int]]]
) -> None:
    llm = engine(toy_model, max_cpu_loras=1)
    assert llm.loras is not None
    lora = llm.loras.load("a", str(adapters[0]))
    [request] = llm.intake.requests("r", llm.tokenizer.encode(PROMPTS[0]), GREEDY, lora)
    llm.engine.add(request)
    llm.engine.step()
    llm.loras.unload("a")
    with pytest.raises(ConfigError, match="'a' is not loaded"):
        llm.loras.find("a")
    with pytest.raises(ConfigError, match="places for adapters are taken"):
        llm.loras.load("b", str(adapters[1]))
    while request.finish_reason is None:
        llm.engine.step()
    assert request.output == alone[1][0]
    llm.loras.load("b", str(adapters[1]))
    assert tokens(llm, PROMPTS, LoRARequest("b", 2, str(adapters[1]))) == alone[2]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"use_dora": True}, "use_dora=true is not supported"),
        ({"bias": "all"}, 'bias="all"'),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"peft_type": "IA3"}, "peft_type 'LORA'"),
    ],
)
def test_what_is_not_done_is_refused(toy_model: Path, tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    path = write_adapter(toy_model, tmp_path / "odd", 1, **changes)
    llm = engine(toy_model)
    with pytest.raises(ModelError, match=says):
        tokens(llm, PROMPTS[:1], LoRARequest("odd", 1, str(path)))


def test_files_that_do_not_fit_are_told_by_name(toy_model: Path, tmp_path: Path) -> None:
    llm = engine(toy_model, max_lora_rank=4)

    def refused(path: Path) -> str:
        with pytest.raises(ModelError) as caught:
            tokens(llm, PROMPTS[:1], LoRARequest("x", 1, str(path)))
        return str(caught.value)

    assert "rank 8 is more than max_lora_rank=4" in refused(write_adapter(toy_model, tmp_path / "large", 1, rank=8))
    assert "adapter_config.json cannot be read" in refused(tmp_path / "nowhere")
    path = write_adapter(toy_model, tmp_path / "pickled", 1)
    (path / "adapter_model.safetensors").rename(path / "adapter_model.bin")
    assert "pickles are not read" in refused(path)
    from safetensors.torch import load_file, save_file

    path = write_adapter(toy_model, tmp_path / "odd", 1)
    good = load_file(path / "adapter_model.safetensors")
    name = next(iter(good))
    for bad, says in (
        ({**good, name: torch.full_like(good[name], float("nan"))}, "not finite"),
        ({**good, name: good[name][:, :3]}, "another model"),
        ({key: value for key, value in good.items() if key != name}, "is missing"),
        ({**good, "base_model.model.lm_head.lora_A.weight": torch.ones(2, 2)}, "matches no projection"),
    ):
        save_file({key: value.contiguous() for key, value in bad.items()}, path / "adapter_model.safetensors")
        assert says in refused(path)


def test_an_engine_without_adapters_says_so(toy_model: Path, adapters: list[Path]) -> None:
    llm = LLM(str(toy_model))
    with pytest.raises(ConfigError, match="enable_lora=True"):
        tokens(llm, PROMPTS[:1], requests(adapters)[1])
    with pytest.raises(ConfigError, match="lora_int_id"):
        LoRARequest("x", 0, "path")
    with pytest.raises(ConfigError, match="our own model code"):
        engine(toy_model, model_impl="adapter")
    assert not json.loads((adapters[0] / "adapter_config.json").read_text()).get("use_rslora")


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), rows=st.integers(1, 9), places=st.integers(1, 4), rank=st.integers(1, 5))
def test_both_faces_add_the_same(seed: int, rows: int, places: int, rank: int) -> None:
    """Against each row's own product; a row's bits do not depend on its neighbours."""
    random = torch.Generator().manual_seed(seed)
    parts, width = [5, 3, 4], 16
    stack = LowRankStack.zeros(places, width, parts, rank, torch.float32, torch.device("cpu"))
    rank = stack.rank  # filled up
    stack.down.copy_(torch.randn(stack.down.shape, generator=random))
    stack.up.copy_(torch.randn(stack.up.shape, generator=random))
    x, out = torch.randn(rows, width, generator=random), torch.randn(rows, sum(parts), generator=random)
    adapters = torch.randint(0, places + 1, (rows,), generator=random)
    expected = out.clone()
    for row, place in enumerate(adapters.tolist()):
        begin = 0
        for part, size in enumerate(parts):
            if place:
                inner = x[row] @ stack.down[place - 1][:, part * rank : (part + 1) * rank]
                expected[row, begin : begin + size] += inner @ stack.up[place - 1][:, begin : begin + size]
            begin += size
    by_torch, by_numba = out.clone(), out.clone()
    low_rank.add_low_rank(by_torch, x, stack, adapters)
    ops = NumbaOps()
    ops.add_low_rank(by_numba, x, stack, adapters)
    torch.testing.assert_close(by_torch, expected)
    torch.testing.assert_close(by_numba, expected)
    assert torch.equal(by_numba[adapters == 0], out[adapters == 0])
    one = out[:1].clone()
    ops.add_low_rank(one, x[:1], stack, adapters[:1])
    assert torch.equal(one, by_numba[:1])
