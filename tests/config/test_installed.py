"""Drafters from pip packages: found by method and by the target's fingerprint, and refused for any other target."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from augury import LLM, SamplingParams
from augury.config.engine import EngineConfig
from augury.config.errors import ConfigError
from augury.config.facts import read_facts
from augury.config.fingerprint import fingerprint, name_of
from augury.config.installed import Installed, check_target, installed, offered, with_drafter

SHIPPED = "augury-smollm2-drafters"


@pytest.fixture
def some(tmp_path: Path, toy_model: Path, monkeypatch: pytest.MonkeyPatch) -> list[Installed]:
    """Two drafters of the toy, one for parallel drafting, and one of another target."""
    mark = fingerprint(toy_model)
    found = [
        Installed("toys", "eagle3", "toy", mark, tmp_path / "one", 4),
        Installed("toys", "eagle3", "toy", mark, tmp_path / "parallel", 6, {"parallel_drafting": True}),
        Installed("others", "medusa", "other", "files-0", tmp_path / "other"),
    ]
    monkeypatch.setattr("augury.config.installed.installed", lambda: tuple(found))
    return found


def test_the_drafter_of_the_target_is_taken(some: list[Installed], toy_model: Path) -> None:
    target = read_facts(str(toy_model))
    asked = with_drafter({"method": "eagle3"}, target)
    own = {"method": "eagle3", "model": str(some[0].directory), "num_speculative_tokens": 4}
    assert asked == {**own, "adaptive": True}  # nobody said how many
    assert with_drafter({"method": "eagle3", "num_speculative_tokens": 4}, target) == own
    assert with_drafter({"method": "eagle3", "num_speculative_tokens": 2}, target)["num_speculative_tokens"] == 2
    assert with_drafter({"method": "eagle3", "parallel_drafting": True}, target)["model"] == str(some[1].directory)


@pytest.mark.parametrize("wanted", [None, {"method": "ngram"}, {"method": "eagle3", "model": "x"}, {"model": "x"}, {}])
def test_nothing_is_offered_where_nothing_is_missing(wanted: dict[str, Any] | None, some: list[Installed]) -> None:
    assert offered(wanted) == []


def test_a_target_without_a_drafter_is_told_what_there_is(some: list[Installed], toy_model: Path) -> None:
    with pytest.raises(ConfigError, match=r"trained for this target; there are some for other \(others\)"):
        with_drafter({"method": "medusa"}, read_facts(str(toy_model)))


def test_without_any_the_model_is_missing_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("augury.config.installed.installed", tuple)
    with pytest.raises(ConfigError, match=r"speculative_config\.model is missing"):
        EngineConfig.parse(model="default", speculative_config={"method": "eagle3"})


def test_a_drafter_of_another_target_is_refused_by_name(tmp_path: Path, toy_model: Path) -> None:
    target = read_facts(str(toy_model))
    for mark, right in ((fingerprint(toy_model), True), ("files-0123456789abcdef", False)):
        (tmp_path / "config.json").write_text(json.dumps({"augury_target": {"name": "Big-7B", "fingerprint": mark}}))
        drafter = read_facts(str(tmp_path))
        if right:
            check_target(drafter, target)
            continue
        with pytest.raises(ConfigError, match=r"was trained for Big-7B \(files-0123456789abcdef\), and this target is"):
            check_target(drafter, target)


def test_a_fingerprint_is_of_the_weights(tmp_path: Path, toy_model: Path) -> None:
    for file in toy_model.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    assert fingerprint(tmp_path) == fingerprint(toy_model)
    weights = next(tmp_path.glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-4] + b"\x01\x02\x03\x04\x05")
    assert fingerprint(tmp_path) != fingerprint(toy_model)
    (tmp_path / "augury.json").write_text(json.dumps({"source": {"path": "/x/Name.Q4.gguf", "sha256": "ab" * 32}}))
    assert fingerprint(tmp_path) == "gguf-" + "ab" * 8 and name_of(tmp_path) == "Name.Q4"


def test_a_package_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = tmp_path / "broken-0.1.dist-info"
    made.mkdir()
    (made / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 0.1\n")
    (made / "entry_points.txt").write_text("[augury.drafters]\nbroken = broken_drafters:DIRECTORY\n")
    (tmp_path / "broken_drafters.py").write_text(f"DIRECTORY = {str(tmp_path)!r}\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    installed.cache_clear()
    try:
        with pytest.raises(ConfigError, match=r"drafters of the package broken cannot be read"):
            installed()
    finally:
        installed.cache_clear()


def test_the_shipped_drafter_is_found_and_changes_no_token(default_model: Path) -> None:
    """An honest acceptance on a prompt nobody trained on: a drafter of noise would stay near 1."""
    assert any(one.package == SHIPPED for one in installed()), "make setup installs it"
    plain = LLM("default", max_model_len=256)
    asked_for = {"method": "eagle3", "num_speculative_tokens": 3}
    llm = LLM("default", max_model_len=256, weights_of=plain, speculative_config=asked_for)
    spec = llm.config.speculative_config
    assert spec is not None and not spec.adaptive and Path(str(spec.model)).name == "eagle3"
    given = with_drafter({"method": "eagle3"}, read_facts(str(plain.model_path)))
    assert given["num_speculative_tokens"] == 3 and given["adaptive"] and given["model"] == spec.model
    asked = [[{"role": "user", "content": text}] for text in ("Count from one to ten.", "What is a violin?")]
    params = [SamplingParams(temperature=heat, seed=7, max_tokens=48) for heat in (0.0, 0.7)]
    for one in params:
        expected, found = (
            [output.outputs[0].token_ids for output in engine.chat(asked, one, use_tqdm=False)]
            for engine in (plain, llm)
        )
        assert found == expected
    stats = llm.engine.stats.spec
    assert stats.num_drafts > 20 and 1 + stats.num_accepted_tokens / stats.num_drafts > 1.5
