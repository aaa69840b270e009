"""Who has which part of a model, and which numbers of ranks are refused in which words."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from augury import LLM
from augury.config.engine import EngineConfig
from augury.config.errors import ConfigError
from augury.engine import parallel_checks
from augury.engine.team import arguments_of, is_launched
from augury.model.errors import ModelError
from augury.parallel.shares import edges, fits, head_share, head_widths, sizes_that_fit, widths


@given(count=st.integers(0, 500), size=st.integers(1, 9), unit=st.sampled_from([1, 4, 64]))
def test_shares_are_all_of_it_in_whole_units(count: int, size: int, unit: int) -> None:
    bounds = edges(count, size, unit)
    assert bounds[0] == 0 and bounds[-1] == count and sum(widths(count, size, unit)) == count
    assert all(first <= last for first, last in pairwise(bounds)) and all(edge % unit == 0 for edge in bounds[:-1])
    sizes = [-(-width // unit) for width in widths(count, size, unit)]
    assert max(sizes) - min(sizes) <= 1


@given(keys=st.integers(1, 12), group=st.integers(1, 8), size=st.integers(1, 24))
def test_every_query_is_one_ranks_and_lies_with_its_key(keys: int, group: int, size: int) -> None:
    heads = keys * group
    if not fits(heads, keys, size):
        assert size > keys
        return
    taken: list[int] = []
    for rank in range(size):
        (first, last), own = head_share(heads, keys, rank, size)
        taken += range(first, last)
        # The kernels count queries of a key from the first on: every key must have as many.
        each = (last - first) // (own[1] - own[0])
        assert [own[0] + (query - first) // each for query in range(first, last)] == [
            query // group for query in range(first, last)
        ]
    assert taken == list(range(heads)) and sum(head_widths(heads, keys, size)) == heads


def test_the_sizes_of_known_models() -> None:
    assert sizes_that_fit(9, 3) == [1, 2, 3, 9]  # SmolLM2-135M
    assert sizes_that_fit(32, 8) == [*range(1, 9), 16, 32]  # Llama-3.1-8B


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"tensor_parallel_size": 3}, ModelError, "=3 cannot divide 4 attention heads with 2 keys; write 1, 2, 4."),
    ({"tensor_parallel_size": 2, "model_impl": "adapter"}, ModelError, "=2 needs our own model code"),
    (
        {"tensor_parallel_size": 2, "enable_lora": True},
        ConfigError,
        "enable_lora cannot be combined with tensor_parallel_",
    ),
    ({"tensor_parallel_size": 0}, ConfigError, "tensor_parallel_size=0: input should be greater than or equal to 1"),
    ({"tensor_parallel_size": 500}, ConfigError, "tensor_parallel_size=500: input should be less than or equal to 64"),
]


@pytest.mark.parametrize(("arguments", "error", "words"), REFUSED)
def test_what_cannot_be_divided_is_refused_before_anything_is_started(
    toy_model: Path, arguments: dict[str, Any], error: type[Exception], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr("subprocess.Popen", lambda *given, **more: pytest.fail("a rank was started"))
    with pytest.raises(error) as caught:
        LLM(str(toy_model), device="cpu", **arguments)
    assert words in str(caught.value) and "tensor_parallel_size" in str(caught.value)


def test_a_core_or_a_gpu_for_each_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    config = EngineConfig.parse(model="m", device="cpu", tensor_parallel_size=4)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 1}, raising=False)
    with pytest.raises(ConfigError, match=r"tensor_parallel_size=4 needs a core for each rank, .* has 2; write 2 or"):
        parallel_checks.check_devices(config, 4)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    parallel_checks.check_devices(config, 4)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    parallel_checks.check_devices(config, 4)
    with pytest.raises(ConfigError, match="tensor_parallel_size=4 needs that many GPUs, but torch sees 1; use 1"):
        parallel_checks.check_devices(EngineConfig.parse(model="m", tensor_parallel_size=4), 4)


def test_drafters_with_weights_among_others_are_refused_by_name(toy_model: Path) -> None:
    parts = [
        {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_min": 1, "prompt_lookup_max": 2},
        {"method": "draft_model", "model": str(toy_model), "num_speculative_tokens": 2},
    ]
    with pytest.raises(
        ConfigError, match="a drafter that has weights cannot be combined with tensor_parallel_size=2 yet"
    ):
        LLM(str(toy_model), device="cpu", tensor_parallel_size=2, speculative_config=parts)


def test_torchrun_must_start_as_many(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_launched(2)
    for name, value in {"RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    assert is_launched(4)
    with pytest.raises(ConfigError, match="tensor_parallel_size=2, but torchrun has started 4 processes"):
        is_launched(2)


def test_other_ranks_get_the_same_configuration(toy_model: Path) -> None:
    spec = {"method": "draft_model", "model": str(toy_model), "num_speculative_tokens": 3, "tree": {"max_nodes": 6}}
    config = EngineConfig.parse(
        model=str(toy_model), tensor_parallel_size=2, max_num_seqs=3, seed=5, speculative_config=spec, block_size=8
    )
    again = EngineConfig.parse(**arguments_of(config))
    assert again == config and again.speculative_config == config.speculative_config
