"""Programs written for vLLM: its module paths, its engines by hand and asynchronous, and scripts left as they are."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from augury import LLM, SamplingParams
from augury.compat import AsyncEngineArgs, AsyncLLMEngine, EngineArgs, LLMEngine, TokensPrompt
from augury.compat.engine.async_llm_engine import EngineDeadError
from augury.compat.sampling_params import RequestOutputKind
from augury.compat.utils import FlexibleArgumentParser
from augury.compat.v1.metrics.reader import Counter, Vector
from augury.config.errors import ConfigError

PAGE = Path(__file__).parents[2] / "docs" / "compat.md"
NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 2, "prompt_lookup_max": 3}
PROMPT = "abcabcabcabc"
pytestmark = pytest.mark.usefixtures("one_thread_throughout")


@pytest.fixture(scope="module")
def llm(toy_model: Path) -> LLM:
    return LLM(str(toy_model), speculative_config=NGRAM, max_num_seqs=4)


@pytest.fixture(scope="module")
def expected(llm: LLM) -> dict[int, list[int]]:
    """Tokens by seed."""
    return {
        seed: llm.generate(PROMPT, SamplingParams(max_tokens=24, seed=seed), use_tqdm=False)[0].outputs[0].token_ids
        for seed in range(3)
    }


def test_every_path_of_the_page_is_there() -> None:
    rows = re.findall(r"^\| `vllm([\w.]*)` \| (.+?) \|", PAGE.read_text(), flags=re.M)
    assert len(rows) > 8
    for path, names in rows:
        module = import_module("augury.compat" + path)
        found = re.findall(r"`(\w+)`", names)
        assert found and all(hasattr(module, name) for name in found), (path, found)


def test_engine_args_are_checked_when_they_are_made(toy_model: Path) -> None:
    with pytest.raises(TypeError, match=r"did you mean .max_model_len"):
        EngineArgs(model=str(toy_model), max_model_length=3)
    args = AsyncEngineArgs(model=str(toy_model), max_model_len=64, disable_log_requests=True, trust_remote_code=True)
    assert (args.model, args.max_model_len, args.block_size) == (str(toy_model), 64, 16)


def test_engine_args_as_flags_of_a_script(toy_model: Path) -> None:
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    parser.add_argument("--mine", default="yes")
    words = ["--model", str(toy_model), "--max_model_len=64", "--enforce-eager", "--no-enable-prefix-caching"]
    words += [
        "--speculative-config",
        '{"method": "ngram", "num_speculative_tokens": 2}',
        "--gpu-memory-utilization",
        "0.5",
    ]
    given = EngineArgs.from_cli_args(parser.parse_args(words)).arguments()
    assert given["max_model_len"] == 64 and given["enforce_eager"] is True and given["enable_prefix_caching"] is False
    assert given["speculative_config"]["method"] == "ngram" and given["gpu_memory_utilization"] == 0.5
    assert "mine" not in given and "block_size" not in given


def finished(engine: LLMEngine) -> dict[str, list[Any]]:
    """Every output of every step, by request."""
    seen: dict[str, list[Any]] = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            seen.setdefault(output.request_id, []).append(output)
    return seen


def test_the_engine_by_hand(llm: LLM, expected: dict[int, list[int]]) -> None:
    engine = LLMEngine(llm)
    for seed, kind in enumerate(RequestOutputKind):
        engine.add_request(kind.name, PROMPT, SamplingParams(max_tokens=24, seed=seed, output_kind=kind))
    with pytest.raises(ConfigError, match="in use"):
        engine.add_request("DELTA", PROMPT)
    assert engine.get_num_unfinished_requests() == 3
    seen = finished(engine)
    assert [output.finished for output in seen["FINAL_ONLY"]] == [True]
    assert all(
        outputs[-1].finished and not outputs[0].finished for name, outputs in seen.items() if name != "FINAL_ONLY"
    )
    assert seen["CUMULATIVE"][-1].outputs[0].token_ids == expected[0]
    assert seen["FINAL_ONLY"][-1].outputs[0].token_ids == expected[2]
    pieces = [output.outputs[0] for output in seen["DELTA"]]
    assert [token for piece in pieces for token in piece.token_ids] == expected[1]
    assert "".join(piece.text for piece in pieces) == llm.tokenizer.decoder(True)(expected[1])
    sizes = [len(output.outputs[0].token_ids) for output in seen["CUMULATIVE"]]
    assert sizes == sorted(set(sizes))


def test_a_request_is_aborted_and_its_name_is_free_again(llm: LLM, expected: dict[int, list[int]]) -> None:
    engine = LLMEngine(llm)
    params = SamplingParams(max_tokens=24, seed=0)
    engine.add_request("a", PROMPT, params)
    engine.step()
    engine.abort_request(["a", "never"])
    assert not engine.has_unfinished_requests()
    tokens = llm.tokenizer.encode(PROMPT)
    engine.add_request("a", TokensPrompt(prompt_token_ids=tokens), params)  # type: ignore[arg-type]
    assert finished(engine)["a"][-1].outputs[0].token_ids == expected[0]


def test_metrics_are_of_the_readers_classes(llm: LLM, expected: dict[int, list[int]]) -> None:
    found = {metric.name: metric for metric in LLMEngine(llm).get_metrics()}
    assert isinstance(found["vllm:spec_decode_num_drafts"], Counter)
    assert isinstance(found["vllm:spec_decode_num_accepted_tokens_per_pos"], Vector)


# --- asynchronous ----------------------------------------------------------------------------------------------------


async def collected(engine: AsyncLLMEngine, name: str, params: SamplingParams) -> list[int]:
    tokens: list[int] = []
    async for output in engine.generate(PROMPT, params, name):
        tokens = list(output.outputs[0].token_ids)
    return tokens


def test_streams_side_by_side_give_what_they_give_alone(llm: LLM, expected: dict[int, list[int]]) -> None:
    async def run(engine: AsyncLLMEngine) -> None:
        await engine.check_health()
        jobs = [collected(engine, str(seed), SamplingParams(max_tokens=24, seed=seed)) for seed in range(3)]
        assert dict(enumerate(await asyncio.gather(*jobs))) == expected
        with pytest.raises(ConfigError, match="prompt is empty"):
            await collected_empty(engine)
        assert (await engine.get_tokenizer()) is llm.get_tokenizer()

    async def collected_empty(engine: AsyncLLMEngine) -> None:
        async for _ in engine.generate([], SamplingParams(), "empty"):
            raise AssertionError

    engine = AsyncLLMEngine(llm)
    try:
        asyncio.run(run(engine))
    finally:
        engine.shutdown()
    assert not engine.is_running and not engine.errored


def test_leaving_a_stream_or_aborting_it_stops_the_request(llm: LLM) -> None:
    async def run(engine: AsyncLLMEngine) -> None:
        params = SamplingParams(max_tokens=200, ignore_eos=True)
        async for _ in engine.generate(PROMPT, params, "left"):
            break
        stream = engine.generate(PROMPT, params, "aborted")
        await anext(stream)
        await engine.abort("aborted")
        with pytest.raises(EngineDeadError, match="aborted"):
            async for _ in stream:
                pass
        await engine.abort("left")  # in the engine's thread, behind what leaving has ordered
        assert not engine.engine.has_unfinished_requests()

    engine = AsyncLLMEngine(llm)
    try:
        asyncio.run(run(engine))
    finally:
        engine.shutdown()


def test_a_stream_that_is_left_after_the_end_says_nothing(llm: LLM) -> None:
    async def run() -> None:
        engine = AsyncLLMEngine(llm)
        stream = engine.generate(PROMPT, SamplingParams(max_tokens=24), "left")
        await anext(stream)
        engine.shutdown()
        await stream.aclose()  # type: ignore[attr-defined]
        engine.engine.abort_request("left")

    asyncio.run(run())


def test_a_failing_engine_is_told_to_everybody(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> list[Any]:
        raise ArithmeticError("the step failed")

    async def run(engine: AsyncLLMEngine) -> None:
        with pytest.raises(ArithmeticError, match="the step failed"):
            await collected(engine, "a", SamplingParams())
        engine._thread.join()
        with pytest.raises(EngineDeadError):
            await collected(engine, "b", SamplingParams())

    engine = AsyncLLMEngine(llm)
    monkeypatch.setattr(engine.engine, "step", broken)
    asyncio.run(run(engine))
    engine.engine.abort_request("a")
    assert engine.errored


# --- scripts as they are ---------------------------------------------------------------------------------------------

SCRIPT = """
import sys
from vllm import LLM, SamplingParams, TokensPrompt
from vllm.sampling_params import SamplingParams as Same
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.v1.metrics.reader import Counter
import vllm.lora.nothing_of_ours
"""


def test_a_script_runs_unchanged(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        SCRIPT.replace("import vllm.lora.nothing_of_ours", "print(Same is SamplingParams, sys.argv)")
    )
    command = [sys.executable, "-m", "augury.compat", "script.py", "--flag"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=dict(os.environ), check=False)
    assert done.stdout == "True ['script.py', '--flag']\n", done.stderr
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=dict(os.environ), check=False)
    assert done.returncode == 1 and "vllm.lora" in done.stderr and "docs/compat.md lists them" in done.stderr
