"""What the real class of vLLM 0.32 showed us to have wrong: each fault that was mended, by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from vllm_oracle.checkpoints import make

from augury.config.keys import OWN
from augury.config.read import KEYS
from augury.tools.config.check import REFUSED, ConfigQuestion, as_record, exit_code, judge
from augury.tools.doctor.examine import CheckedAgainst, Examination, examine
from augury.tools.doctor.fix import mended

HEAD = {"method": "eagle3", "model": "org/EAGLE3-head", "num_speculative_tokens": 3}
OURS = [name for name, key in KEYS.items() if key.since == OWN]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("m"))


def command(given: dict[str, Any], flags: str = "") -> str:
    return f"vllm serve meta-llama/Llama-3.1-8B-Instruct {flags} --speculative-config '{json.dumps(given)}'"


def errors(found: Examination) -> list[str]:
    return [one.id for one in found.findings if one.severity == "error"]


def checked(given: dict[str, Any], target: Path | None = None, **more: Any) -> dict[str, Any]:
    answer = judge(ConfigQuestion(given, str(target) if target else None, "0.32", **more))
    return {**as_record(answer, "0.32"), "refused": exit_code(answer, "0.32") == REFUSED}


@pytest.mark.parametrize(("flags", "expected"), [("", ["draft-tp"]), ("-tp 2", []), ("-tp $RANKS", [])])
def test_absent_tensor_parallelism_is_one(flags: str, expected: list[str]) -> None:
    assert errors(examine(command({**HEAD, "draft_tensor_parallel_size": 2}, flags))) == expected


def test_without_a_size_config_check_takes_one_too() -> None:
    assert checked({**HEAD, "draft_tensor_parallel_size": 2})["refused"]
    assert not checked({**HEAD, "draft_tensor_parallel_size": 2}, tensor_parallel_size=2)["refused"]


@pytest.mark.parametrize(("flags", "left"), [("", {}), ("-tp 2", {"draft_tensor_parallel_size": 2})])
def test_mending_a_size_writes_none_that_vllm_refuses(flags: str, left: dict[str, int]) -> None:
    text = command({**HEAD, "tensor_parallel_size": 2}, flags)
    after = mended(examine(text), CheckedAgainst()).text
    assert json.dumps({**HEAD, **left}) in after
    assert errors(examine(after)) == []


@pytest.mark.parametrize("name", ["enable_suffix_decoding", "suffix_save_path", "posterior_alph", "prompt_lookup_matc"])
def test_nobody_with_vllm_is_told_of_our_keys(name: str) -> None:
    said = checked({**HEAD, name: 1})["error"]
    assert "is unknown" in said
    assert not [key for key in OURS if key in said]
    told = examine(command({**HEAD, name: 1})).findings
    assert not [key for key in OURS for one in told if key in one.message + one.fix]


def test_nobody_with_vllm_is_told_of_our_rules() -> None:
    said = checked({**HEAD, "rejection_sample_method": "nope"})["error"]
    assert said.endswith("must be one of 'standard', 'block', 'synthetic'.")


def test_slots_and_look_ahead_follow_the_method_that_vllm_takes(models: Path) -> None:
    found = checked({"method": "draft_model", "model": str(models / "head-eagle3"), "num_speculative_tokens": 3})
    assert found["config"]["method"] == "eagle3" and found["derived"]["extra_slots"] == 0
    renamed = checked({"model": str(models / "renamed-head"), "num_speculative_tokens": 3})
    assert renamed["config"]["method"] == "draft_model" and renamed["derived"]["extra_slots"] == 1


def test_here_the_written_method_still_stands(models: Path) -> None:
    given = {"method": "draft_model", "model": str(models / "head-eagle3"), "num_speculative_tokens": 3}
    answer = judge(ConfigQuestion(given))
    assert answer.config is not None and answer.config.method == "draft_model"


def test_a_head_that_does_not_fit_the_method_is_refused(models: Path) -> None:
    given = {"method": "eagle", "model": str(models / "head-eagle3"), "num_speculative_tokens": 3}
    assert "EagleLlamaForCausalLMEagle3" in str(checked(given)["notes"]) and checked(given)["refused"]
    assert errors(examine(command(given))) == ["drafter-class-missing"]


def test_a_p_eagle_head_is_not_run_in_parallel_unless_it_is_written(models: Path) -> None:
    given = {"method": "eagle3", "model": str(models / "spec-peagle"), "num_speculative_tokens": 3}
    found = checked(given)
    assert not found["config"].get("parallel_drafting") and '"parallel_drafting": true' in str(found["notes"])


def test_heads_are_held_against_the_inherited_size(models: Path) -> None:
    given = {"method": "draft_model", "model": str(models / "six-heads"), "num_speculative_tokens": 3}
    assert checked(given, models / "llama", tensor_parallel_size=4)["refused"]
    assert not checked(given, models / "llama", tensor_parallel_size=2)["refused"]


@pytest.mark.parametrize(
    ("key", "value", "hint"),
    [
        ("attention_backend", "FLASH_ATN", "FLASH_ATTN"),
        ("quantization", "fp88", "fp8"),
        ("draft_load_config", {"load_fromat": "auto"}, "load_format"),
    ],
)
def test_names_that_the_release_does_not_have(key: str, value: Any, hint: str) -> None:
    found = checked({**HEAD, key: value})
    assert found["refused"] and f"did you mean {hint}?" in str(found["notes"])


@pytest.mark.parametrize("release", ["0.27", "0.28", "0.32"])
def test_the_budget_rule_ends_with_0_27(release: str) -> None:
    given = {"method": "dflash", "model": "org/block-drafter", "num_speculative_tokens": 15}
    found = examine(command(given, "--max-num-seqs 32 --max-num-batched-tokens 480"), asked=CheckedAgainst(release))
    assert errors(found) == (["draft-slots-over-budget"] if release == "0.27" else [])


@pytest.mark.parametrize("switch", ["", "ARCTIC_INFERENCE_ENABLED=1 "])
def test_the_arctic_plugin_is_no_error(switch: str) -> None:
    given = {"method": "arctic", "model": "org/head", "num_speculative_tokens": 3, "enable_suffix_decoding": True}
    found = examine(switch + command(given))
    assert [one.id for one in found.findings] == ["arctic-plugin"]
