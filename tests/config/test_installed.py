"""Drafters from pip packages: found by method and by the target's fingerprint, and refused for any other target."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from augury.config.engine import EngineConfig
from augury.config.errors import ConfigError
from augury.config.facts import read_facts
from augury.config.fingerprint import fingerprint, name_of
from augury.config.installed import Installed, check_target, installed, offered, with_drafter
from augury.tools.config.check import ConfigQuestion, judge


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
    assert with_drafter({"method": "eagle3", "adaptive": False}, target) == {**own, "adaptive": False}
    assert with_drafter({"method": "eagle3", "num_speculative_tokens": 0}, target)["num_speculative_tokens"] == 0
    for yes in (True, "yes", "true", 1):  # what vLLM takes for true asks for the same drafter
        assert with_drafter({"method": "eagle3", "parallel_drafting": yes}, target)["model"] == str(some[1].directory)
    for no in (False, "no", "off", 0):
        assert with_drafter({"method": "eagle3", "parallel_drafting": no}, target)["model"] == str(some[0].directory)
    assert with_drafter({"method": "eagle3", "adaptive": "no"}, target)["adaptive"] is False
    tree = {"method": "eagle3", "speculative_token_tree": "[(0,), (1,)]"}  # whose nodes are the number
    assert "num_speculative_tokens" not in with_drafter(tree, target)


def test_one_of_several_is_taken_and_what_it_leaves_open_is_settled_for_all(
    some: list[Installed], toy_model: Path
) -> None:
    some[0].directory.mkdir()
    (some[0].directory / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLMEagle3"]}))
    look_up = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4}
    wanted = {"method": "hybrid", "drafters": [look_up, {"method": "eagle3"}]}
    given = with_drafter(wanted, read_facts(str(toy_model)))
    assert given["drafters"] == [look_up, {"method": "eagle3", "model": str(some[0].directory)}]
    config = judge(ConfigQuestion(wanted, str(toy_model))).config
    assert config is not None and config.adaptive


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


def test_a_package_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The drafters of the others are found all the same."""
    made = tmp_path / "broken-0.1.dist-info"
    made.mkdir()
    (made / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 0.1\n")
    (made / "entry_points.txt").write_text("[augury.drafters]\nbroken = broken_drafters:DIRECTORY\n")
    (tmp_path / "broken_drafters.py").write_text(f"DIRECTORY = {str(tmp_path)!r}\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    installed.cache_clear()
    try:
        others = installed()
        for told, why in (
            (None, "drafters.json; build it with its data files, as docs/publish-a-drafter.md shows"),
            ("[]", "is not as docs/publish-a-drafter.md describes it"),
            ('{"target": {"name": "x", "fingerprint": "y"}, "drafters": [{"method": "eagle3"}]}', "directory"),
        ):
            if told is not None:
                (tmp_path / "drafters.json").write_text(told)
            installed.cache_clear()
            assert installed() == others
            message = caplog.messages[-1]
            assert message.startswith("the drafters of the package broken are left out: ") and why in message
    finally:
        installed.cache_clear()


def test_config_check_says_which_one_is_taken(some: list[Installed], toy_model: Path) -> None:
    answer = judge(ConfigQuestion({"method": "medusa"}, str(toy_model)))
    assert answer.config is None and "no installed medusa drafter was trained for this target" in str(answer.error)
    some[0].directory.mkdir()
    (some[0].directory / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLMEagle3"]}))
    answer = judge(ConfigQuestion({"method": "eagle3"}, str(toy_model)))
    assert answer.config is not None and answer.config.model == str(some[0].directory)
    assert [note.text for note in answer.notes if note.key == "model"] == [
        "the drafter that is installed for this target."
    ]
    told = judge(ConfigQuestion({"method": "eagle3", "num_speculative_tokens": 3}, str(toy_model), "0.32")).error
    assert "model is missing" in str(told)  # vLLM has no such drafters


def test_a_kind_of_head_is_told_as_its_method() -> None:
    for name in ("p-eagle", "PEagle", "p_eagle"):
        with pytest.raises(ConfigError, match=r'is unknown; write {"method": "eagle3", "parallel_drafting": true}'):
            EngineConfig.parse(model="default", speculative_config={"method": name, "num_speculative_tokens": 2})
