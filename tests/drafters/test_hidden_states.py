"""extract_hidden_states: the guide's example, the states against transformers', files under real life, bad input."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import byte_tokenizer
from gate import Studied
from safetensors.torch import load_file
from torch import Tensor

from augury import LLM, SamplingParams
from augury.drafters import hidden_files
from augury.drafters.extract_hidden_states import HiddenStatesDrafter
from augury.drafters.hidden_files import cleanup_hidden_states, load_hidden_states

PROMPTS = ["abcabcabc", "hello hello", "z", "the cat sat on the mat and the cat sat", "12121", "qqqq", "x y x y", "end"]
DEVICE = os.environ.get("AUGURY_TEST_DEVICE", "cpu")
CONNECTOR = {"kv_connector": "ExampleHiddenStatesConnector", "kv_role": "kv_producer"}

EXAMPLE = """
import tempfile

from safetensors import safe_open
from augury import LLM, SamplingParams


def main():
    with tempfile.TemporaryDirectory() as tmpdirname:
        llm = LLM(
            model=MODEL,
            tensor_parallel_size=1,
            speculative_config={
                "method": "extract_hidden_states",
                "num_speculative_tokens": 1,
                "draft_model_config": {
                    "hf_config": {
                        # Layer indices to extract hidden states from
                        "eagle_aux_hidden_state_layer_ids": [2, 18, 34],
                    }
                },
            },
            kv_transfer_config={
                "kv_connector": "ExampleHiddenStatesConnector",
                "kv_role": "kv_producer",
                "kv_connector_extra_config": {
                    "shared_storage_path": tmpdirname,
                },
            },
        )

        prompts = ["Hello, how are you?", "What is machine learning?"]
        sampling_params = SamplingParams(max_tokens=1)
        outputs = llm.generate(prompts, sampling_params)

        for output in outputs:
            print("Prompt:", output.prompt)
            print("Prompt token ids:", output.prompt_token_ids)

            hidden_states_path = output.kv_transfer_params.get("hidden_states_path")
            print("Hidden states saved to:", hidden_states_path)

            with safe_open(hidden_states_path, "pt") as f:
                token_ids = f.get_tensor("token_ids")
                hidden_states = f.get_tensor("hidden_states")
                print("Shape:", hidden_states.shape)
                # Shape: (num_tokens, num_layers, hidden_size)


main()
"""


def test_the_guides_example_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """vllm-ascend's guide, with only its import and its model changed."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=260, hidden_size=32, intermediate_size=32, num_hidden_layers=36, num_attention_heads=2,
        max_position_embeddings=128, tie_word_embeddings=True, eos_token_id=256, bos_token_id=None,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)  # type: ignore[attr-defined]
    exec(compile(EXAMPLE, "example", "exec"), {"MODEL": str(tmp_path)})
    printed = capsys.readouterr().out
    assert "Shape: torch.Size([19, 3, 32])" in printed and "Shape: torch.Size([25, 3, 32])" in printed


@pytest.fixture(scope="module")
def studied(toy_model: Path) -> Studied:
    return Studied(toy_model, [], 0)


def extracting(toy_model: Path, folder: Path, layers: list[int] | None = None, extra: Any = None, **engine: Any) -> LLM:
    return LLM(
        str(toy_model), device=DEVICE,
        **{"max_model_len": 256, **engine},
        speculative_config={
            "method": "extract_hidden_states", "num_speculative_tokens": 1,
            "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": layers or [0, 1, 2]}},
        },
        kv_transfer_config={
            **CONNECTOR, "kv_connector_extra_config": {"shared_storage_path": str(folder), **(extra or {})},
        },
    )  # fmt: skip


def asking(**wishes: Any) -> dict[str, Any]:
    return {"kv_transfer_params": wishes}


def states_of(studied: Studied, tokens: list[int], layers: tuple[int, ...]) -> Tensor:
    return studied.streams(tokens, layers).view(len(tokens), len(layers), -1)


def check_output(studied: Studied, output: Any, tokens: list[int], layers: tuple[int, ...] = (0, 1, 2)) -> None:
    path = output.kv_transfer_params["hidden_states_path"]
    found = load_hidden_states(path)
    assert found["token_ids"].dtype == torch.int64 and found["token_ids"].tolist() == tokens
    assert found["hidden_states"].dtype == torch.float32
    torch.testing.assert_close(found["hidden_states"], states_of(studied, tokens, layers), atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("whole", [False, True], ids=["prompt", "with output"])
@pytest.mark.parametrize(
    "engine",
    [{}, {"max_num_seqs": 2}, {"long_prefill_token_threshold": 5, "block_size": 4}, {"enable_prefix_caching": False},
     {"num_gpu_blocks_override": 19, "max_num_seqs": 8}],
    ids=lambda s: ",".join(f"{k}={v}" for k, v in s.items()) or "as it comes",
)  # fmt: skip
def test_states_are_those_of_one_fresh_pass(
    toy_model: Path, studied: Studied, tmp_path: Path, engine: dict, whole: bool
) -> None:
    llm = extracting(toy_model, tmp_path, **engine)
    params = SamplingParams(
        temperature=0, max_tokens=24, ignore_eos=True, extra_args=asking(include_output_tokens=whole)
    )
    plain = LLM(str(toy_model), device=DEVICE, max_model_len=256).generate(
        PROMPTS, params.clone(extra_args=None), use_tqdm=False
    )
    for _ in range(2):  # the second time prefixes are found in the cache, and bring their states
        outputs = llm.generate(PROMPTS, params, use_tqdm=False)
        for output, other in zip(outputs, plain, strict=True):
            tokens = output.outputs[0].token_ids
            assert tokens == other.outputs[0].token_ids
            check_output(studied, output, [*output.prompt_token_ids, *(tokens[:-1] if whole else [])])
    if engine.get("block_size"):
        assert outputs[3].num_cached_tokens > 0
    if "num_gpu_blocks_override" in engine:
        assert llm.engine.stats.preemptions > 0
    assert len(list(tmp_path.glob("*.safetensors"))) == 16


def test_a_shared_prefix_keeps_its_states_and_a_stop_ends_them(
    toy_model: Path, studied: Studied, tmp_path: Path
) -> None:
    llm = extracting(toy_model, tmp_path, block_size=4)
    first = llm.generate(["the cat sat on the mat"], SamplingParams(temperature=0, max_tokens=1), use_tqdm=False)[0]
    params = SamplingParams(temperature=0, max_tokens=20, extra_args=asking(include_output_tokens=True))
    stop = llm.generate(["the cat sat on a chair"], params, use_tqdm=False)[0].outputs[0].token_ids[7]
    second = llm.generate(["the cat sat on a chair"], params.clone(stop_token_ids=[stop]), use_tqdm=False)[0]
    assert second.num_cached_tokens >= 12 and second.outputs[0].finish_reason == "stop"
    check_output(studied, first, first.prompt_token_ids)
    check_output(studied, second, [*second.prompt_token_ids, *second.outputs[0].token_ids[:-1]])


def test_layers_come_in_order_and_in_the_models_type(toy_model: Path, studied: Studied, tmp_path: Path) -> None:
    output = extracting(toy_model, tmp_path, [2, 1, 2]).generate(["hello"], SamplingParams(max_tokens=1))[0]
    check_output(studied, output, output.prompt_token_ids, (1, 2))
    half = extracting(toy_model, tmp_path / "half", [0], dtype="bfloat16").generate(["hello"], use_tqdm=False)[0]
    found = load_hidden_states(half.kv_transfer_params["hidden_states_path"])["hidden_states"]
    assert torch.equal(found, states_of(studied, half.prompt_token_ids, (0,)).bfloat16())


def test_several_answers_and_a_refused_neighbour(toy_model: Path, studied: Studied, tmp_path: Path) -> None:
    llm = extracting(toy_model, tmp_path)
    good, bad = SamplingParams(max_tokens=2, n=2, seed=1), SamplingParams(extra_args=asking(hidden_states_path="x"))
    outputs = llm.generate(["hello", "world"], [good, bad], use_tqdm=False)
    check_output(studied, outputs[0], outputs[0].prompt_token_ids)
    assert outputs[1].error and outputs[1].kv_transfer_params is None
    limit = time.monotonic() + 30
    while len(found := sorted(p.name for p in tmp_path.glob("*.safetensors"))) < 2 and time.monotonic() < limit:
        time.sleep(0.01)  # files are written beside the engine; whoever reads one waits for its lock
    assert found == ["0-0.safetensors", "0-1.safetensors"]


# --- files -----------------------------------------------------------------------------------------------------------


def test_the_lock_is_held_until_the_file_is_whole(
    toy_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, begun, go = hidden_files.save_file, threading.Event(), threading.Event()

    def slowly(tensors: dict[str, Tensor], path: Path) -> None:
        write(tensors, path)
        begun.set()
        assert go.wait(30)

    monkeypatch.setattr(hidden_files, "save_file", slowly)
    llm = extracting(toy_model, tmp_path, extra={"num_writer_threads": 1})
    request, queued = (llm._requests(name, [1, 2, 3], SamplingParams(max_tokens=1))[0] for name in ("r", "s"))
    for each in (request, queued):
        llm.engine.add(each)
    while llm.engine.busy:
        llm.engine.step()
    assert begun.wait(30)
    path, later = tmp_path / "r.safetensors", tmp_path / "s.safetensors"
    for name in (path, later):  # also while a file waits for its writer
        with open(f"{name}.lock") as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        assert not name.exists()
    assert llm.engine.saver is not None
    threading.Timer(0.2, go.set).start()
    assert load_hidden_states(path)["token_ids"].tolist() == [1, 2, 3]  # waits for the lock
    for each, name in ((request, path), (queued, later)):
        assert llm.engine.saver.saved(each) == {"hidden_states_path": str(name)}
    cleanup_hidden_states(later)
    cleanup_hidden_states(path, keep_hidden_states=True)
    assert [p.name for p in tmp_path.iterdir()] == ["r.safetensors"]
    cleanup_hidden_states(path)
    assert not list(tmp_path.iterdir())


def test_without_locks_and_with_one_writer(toy_model: Path, studied: Studied, tmp_path: Path) -> None:
    llm = extracting(toy_model, tmp_path, extra={"use_synchronization_lock": False, "num_writer_threads": 1})
    outputs = llm.generate(PROMPTS, SamplingParams(max_tokens=3), use_tqdm=False)
    for output in outputs:
        check_output(studied, output, output.prompt_token_ids)
    assert len(list(tmp_path.iterdir())) == len(PROMPTS)


def test_what_is_aborted_leaves_nothing(toy_model: Path, tmp_path: Path) -> None:
    llm = extracting(toy_model, tmp_path, long_prefill_token_threshold=4)
    requests = [llm._requests(str(i), list(range(1, 20)), SamplingParams(max_tokens=9))[0] for i in range(3)]
    for request in requests:
        llm.engine.add(request)
    for request, steps in zip(requests, (1, 2, 6), strict=True):  # in its prompt, waiting or reading, decoding
        for _ in range(steps):
            llm.engine.step()
        llm.engine.abort(request)
        assert llm.engine.saver is not None and llm.engine.saver.saved(request) is None
    for tokens in llm.stream([5, 6, 7], SamplingParams(max_tokens=50, ignore_eos=True)):
        assert tokens
        break
    assert not list(tmp_path.iterdir())


def test_a_failed_write_is_one_bad_answer(toy_model: Path, studied: Studied, tmp_path: Path) -> None:
    """A disk that refuses: no half file, no lost neighbour, and the answer says so."""
    (tmp_path / "file").write_text("no folder")
    llm = extracting(toy_model, tmp_path / "states", extra={"allow_custom_save_path": True})
    bad = SamplingParams(max_tokens=1, extra_args=asking(hidden_states_path=str(tmp_path / "file" / "x.safetensors")))
    outputs = llm.generate(["hello", "world"], [bad, SamplingParams(max_tokens=1)], use_tqdm=False)
    assert "hidden_states_path" not in outputs[0].kv_transfer_params
    assert "x.safetensors" in outputs[0].kv_transfer_params["hidden_states_error"]
    assert outputs[0].outputs[0].token_ids
    check_output(studied, outputs[1], outputs[1].prompt_token_ids)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "states"]


def test_a_write_cut_off_leaves_no_half_file(toy_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(tensors: dict[str, Tensor], path: Path) -> None:
        Path(path).write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(hidden_files, "save_file", cut)
    llm = extracting(toy_model, tmp_path, extra={"use_synchronization_lock": False})
    output = llm.generate(["hello"], SamplingParams(max_tokens=1), use_tqdm=False)[0]
    assert "disk full" in output.kv_transfer_params["hidden_states_error"]
    assert not list(tmp_path.iterdir())


def test_a_path_of_the_requests_own(toy_model: Path, tmp_path: Path) -> None:
    llm = extracting(toy_model, tmp_path / "a", extra={"allow_custom_save_path": True})
    own = tmp_path / "b" / "mine.safetensors"
    params = SamplingParams(max_tokens=1, extra_args=asking(hidden_states_path=str(own)))
    output = llm.generate(["hello"], params, use_tqdm=False)[0]
    assert output.kv_transfer_params == {"hidden_states_path": str(own)}
    assert load_file(own)["token_ids"].tolist() == output.prompt_token_ids


def test_a_requests_name_cannot_lead_out_of_the_folder(toy_model: Path, tmp_path: Path) -> None:
    llm = extracting(toy_model, tmp_path / "in" / "side")
    request = llm._requests("../../out", [1, 2], SamplingParams(max_tokens=1))[0]
    llm.engine.add(request)
    llm.engine.step()
    assert llm.engine.saver is not None
    path = Path((llm.engine.saver.saved(request) or {})["hidden_states_path"])
    assert path.resolve().parent == (tmp_path / "in" / "side").resolve() and path.exists()


def test_the_same_name_twice_keeps_the_later(toy_model: Path, tmp_path: Path) -> None:
    llm = extracting(toy_model, tmp_path)
    for tokens in ([1, 2], [3, 4, 5]):
        request = llm._requests("same", tokens, SamplingParams(max_tokens=1))[0]
        llm.engine.add(request)
        llm.engine.step()
    assert llm.engine.saver is not None
    llm.engine.saver.saved(request)
    assert load_file(tmp_path / "same.safetensors")["token_ids"].tolist() == [3, 4, 5]


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("transfer", "says"),
    [
        (None, "needs kv_transfer_config; write"),
        ("x", "must be a dictionary such as"),
        ({}, "kv_transfer_config.kv_connector is missing"),
        ({"kv_connector": "NixlConnector", "kv_role": "kv_producer"}, "kv_connector='NixlConnector'"),
        ({**CONNECTOR, "kv_role": "kv_both"}, "kv_role='kv_both'"),
        ({**CONNECTOR, "kv_port": 1}, "kv_transfer_config.kv_port is not supported; remove it"),
        ({**CONNECTOR, "kv_connector_extra_config": {"path": "x"}}, "kv_connector_extra_config.path is not supported"),
        ({**CONNECTOR, "kv_connector_extra_config": {"num_writer_threads": 0}}, "num_writer_threads=0"),
        ({**CONNECTOR, "kv_connector_extra_config": {"shared_storage_path": ""}}, "shared_storage_path=''"),
        ({**CONNECTOR, "kv_connector_extra_config": {"shared_storage_path": "/dev/null/x"}}, "cannot be made"),
    ],
)
def test_bad_transfers_are_refused(toy_model: Path, transfer: Any, says: str) -> None:
    spec = {
        "method": "extract_hidden_states", "num_speculative_tokens": 1,
        "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": [1]}},
    }  # fmt: skip
    with pytest.raises(ValueError, match=says):
        LLM(str(toy_model), device=DEVICE, max_model_len=64, speculative_config=spec, kv_transfer_config=transfer)


def test_a_transfer_without_the_method_is_refused(toy_model: Path) -> None:
    for spec in (None, {"method": "ngram", "num_speculative_tokens": 2}):
        with pytest.raises(ValueError, match="works only with method='extract_hidden_states'"):
            LLM(str(toy_model), device=DEVICE, speculative_config=spec, kv_transfer_config=CONNECTOR)


@pytest.mark.parametrize(
    ("wishes", "says"),
    [
        ({"hidden_states_path": "/tmp/x"}, "needs allow_custom_save_path"),
        ({"include_output_tokens": 1}, "true or false"),
        ({"do_remote_decode": True}, "kv_transfer_params.do_remote_decode is unknown"),
        ([1], "must be a dictionary"),
    ],
)
def test_bad_wishes_are_refused(toy_model: Path, tmp_path: Path, wishes: Any, says: str) -> None:
    llm = extracting(toy_model, tmp_path)
    with pytest.raises(ValueError, match=says):
        llm.generate(["x"], SamplingParams(extra_args={"kv_transfer_params": wishes}), use_tqdm=False)


def test_the_default_folder_is_the_systems(toy_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    llm = LLM(
        str(toy_model), device=DEVICE, max_model_len=64, kv_transfer_config=CONNECTOR,
        speculative_config={"method": "extract_hidden_states", "num_speculative_tokens": 1,
                            "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": [1]}}},
    )  # fmt: skip
    assert isinstance(llm.engine.drafter, HiddenStatesDrafter)
    output = llm.generate(["hi"], SamplingParams(max_tokens=1), use_tqdm=False)[0]
    assert Path(output.kv_transfer_params["hidden_states_path"]).parent == tmp_path
