"""A suffix cache that outlives its engine: saved where that was asked for, whole or not at all, and found again."""

from __future__ import annotations

import gc
import logging
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from served import served

from augury import LLM, SamplingParams
from augury.config.errors import ConfigError
from augury.config.resolve import resolve
from augury.drafters.base import DrafterSetup
from augury.drafters.suffix import SuffixDrafter
from augury.index.store import load, save
from augury.index.suffix import SuffixCache

GREEDY = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)


def spec(**paths: Path) -> dict[str, Any]:
    return {"method": "suffix", **{f"suffix_decoding_{name}_path": str(path) for name, path in paths.items()}}


def engine(toy_model: Path, **paths: Path) -> LLM:
    return LLM(str(toy_model), device="cpu", max_model_len=256, speculative_config=spec(**paths))


def drafter(**paths: Path) -> SuffixDrafter:
    config = resolve(spec(**paths))
    assert config is not None
    return SuffixDrafter(config, DrafterSetup(None, 8, 100, "float32", Path()))  # type: ignore[arg-type]


def written(path: Path, *texts: list[int]) -> Path:
    cache = SuffixCache()
    cache.build(list(texts))
    save(cache, path)
    return path


def answered(llm: LLM, prompt: str) -> tuple[list[int], int]:
    """An answer, and how much of it was drafted."""
    before = llm.engine.stats.spec.num_accepted_tokens
    tokens = llm.generate([prompt], GREEDY, use_tqdm=False)[0].outputs[0].token_ids
    return tokens, llm.engine.stats.spec.num_accepted_tokens - before


def test_what_one_engine_learnt_the_next_one_drafts(toy_model: Path, tmp_path: Path) -> None:
    kept = tmp_path / "learnt.suffix"
    first = engine(toy_model, save=kept)
    text, cold = answered(first, "hello hello")
    assert not kept.exists()
    first.close()
    assert [tokens.tolist() for _, _, tokens in load(kept).responses()] == [text]
    again = engine(toy_model, save=kept)
    resumed = answered(again, "hello hello")
    assert resumed == answered(first, "hello hello")  # as if it had never ended
    assert resumed[0] == text and resumed[1] > cold
    again.close()
    assert len(load(kept).cached) == 2
    assert os.listdir(tmp_path) == ["learnt.suffix"]


def test_nothing_is_written_unless_it_was_asked_for(toy_model: Path, tmp_path: Path) -> None:
    seed = written(tmp_path / "seed.suffix", [1, 2, 3])
    before, made = seed.read_bytes(), seed.stat().st_mtime_ns
    for paths in ({"cache": seed}, {}):
        llm = engine(toy_model, **paths)
        answered(llm, "hello hello")
        llm.close()
    assert (seed.read_bytes(), seed.stat().st_mtime_ns, os.listdir(tmp_path)) == (before, made, ["seed.suffix"])
    LLM(str(toy_model), device="cpu", max_model_len=64).close()  # plain decoding has nothing to save


def test_the_seed_serves_until_something_is_saved(tmp_path: Path) -> None:
    seed, kept = written(tmp_path / "seed", [1, 2, 3]), tmp_path / "kept"
    assert len(drafter(cache=seed, save=kept).cache.cached) == 1
    written(kept, [4], [5])
    assert len(drafter(cache=seed, save=kept).cache.cached) == 2
    assert len(drafter(cache=seed, save=seed).cache.cached) == 1


def test_an_engine_that_is_let_go_saves_and_one_that_never_ran_does_not(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    first = drafter(save=kept)
    del first
    gc.collect()
    assert not kept.exists()
    second = drafter(save=kept)
    second.cache.add("a", [7, 8, 9])
    del second
    gc.collect()
    assert [tokens.tolist() for _, _, tokens in load(kept).responses()] == [[7, 8, 9]]


def test_a_save_that_fails_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kept = written(tmp_path / "kept", [1, 2, 3])
    before = kept.read_bytes()
    one = drafter(save=kept)
    one.cache.add("a", [7, 8, 9])

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with caplog.at_level(logging.ERROR, "augury"):
        one.close()
    assert f"the suffix cache was not saved in {kept}: No space left on device" in caplog.text
    assert kept.read_bytes() == before and os.listdir(tmp_path) == ["kept"]


def test_a_file_that_is_no_cache_is_neither_read_nor_written(tmp_path: Path) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("dear diary")
    with pytest.raises(ConfigError, match=r"suffix_decoding_save_path: .*notes.txt: it is not a suffix cache"):
        drafter(save=notes)
    gc.collect()
    assert notes.read_text() == "dear diary"
    with pytest.raises(ConfigError, match=r"suffix_decoding_save_path: .*nowhere cannot be written to"):
        drafter(save=tmp_path / "nowhere" / "kept")


def test_a_server_told_to_end_saves(toy_model: Path, tmp_path: Path) -> None:
    """Even where the signal goes to its engine too, as service managers send it."""
    kept = tmp_path / "learnt.suffix"
    with served(toy_model, spec=spec(save=kept)) as server:
        asked = {"prompt": "hello", "max_tokens": 20, "temperature": 0, "ignore_eos": True}
        assert server.http.post("/v1/completions", json=asked).status_code == 200
        os.kill(server.engine_pid(), signal.SIGTERM)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(120) == 0
    assert [len(tokens) for _, _, tokens in load(kept).responses()] == [20]
