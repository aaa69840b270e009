"""Tokenizers for traces: light, and the right extra named where something is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from augury.config.errors import ConfigError
from augury.tools.replay.smollm2 import smollm2
from augury.tools.replay.tokens import encoder

RUN = "from augury.cli import main; main()"
TRACE = '{"prompt": "The three rivers are", "completion": " the Rhine, the Loire and the Po, the Rhine, the Loire."}\n'


@pytest.fixture(scope="module")
def both(default_model: Path) -> tuple[Any, Any]:
    from tokenizers import Tokenizer

    return smollm2(), Tokenizer.from_file(str(default_model / "tokenizer.json"))


def test_it_is_the_embedded_models_tokenizer(both: tuple[Any, Any]) -> None:
    ours, theirs = both
    assert ours.get_vocab() == theirs.get_vocab()
    page = (Path(__file__).parents[3] / "docs" / "LOG.md").read_text()[:200_000]
    assert ours.encode(page).ids == theirs.encode(page).ids


@given(text=st.text(max_size=60) | st.text(alphabet="a1 '\t\n<|im_start|>é½", max_size=40))
def test_it_cuts_any_text_alike(both: tuple[Any, Any], text: str) -> None:
    ours, theirs = both
    ids = ours.encode(text).ids
    assert ids == theirs.encode(text).ids
    assert ours.decode(ids, skip_special_tokens=False) == theirs.decode(ids, skip_special_tokens=False)


def replayed(tmp_path: Path, *words: str, missing: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """`augury replay` of a trace with an empty cache, no network, and without some packages."""
    (tmp_path / "trace.jsonl").write_text(TRACE)
    hide = "".join(f"sys.modules[{name!r}] = None; " for name in missing)
    code = f"import sys; {hide}{RUN}"
    env = {**os.environ, "AUGURY_CACHE": str(tmp_path / "cache"), "PIP_NO_INDEX": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", code, "replay", str(tmp_path / "trace.jsonl"), *words]
    return subprocess.run(command, capture_output=True, text=True, env=env, check=False)


def test_a_replay_fetches_and_converts_nothing(tmp_path: Path) -> None:
    done = replayed(tmp_path, missing=("torch", "transformers", "gguf", "safetensors"))
    assert done.returncode == 0, done.stderr
    assert "SmolLM2 (49152 tokens)" in " ".join(done.stdout.split()) and not (tmp_path / "cache").exists()


def test_a_missing_package_is_named_with_its_extra(tmp_path: Path) -> None:
    done = replayed(tmp_path, missing=("numba",))
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "pip install 'augury[traces]'" in done.stderr


def test_without_the_tokenizers_package_the_rest_still_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("augury.tools.replay.tokens.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'augury\[traces\]'; or use --tokenizer words"):
        encoder("default")
    words = encoder("words")
    assert words.encode(["one two"])[0] == words.encode(["one"])[0] + words.encode([" two"])[0]


def test_of_a_model_on_the_hub_only_the_tokenizer_is_fetched(toy_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    asked: list[tuple[str, str]] = []

    def download(model: str, name: str) -> str:
        asked.append((model, name))
        return str(toy_model / name)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    assert encoder("owner/name").name.startswith("owner/name (")
    assert asked == [("owner/name", "tokenizer.json")]
