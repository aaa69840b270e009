"""Arguments of vLLM that change nothing here: taken with a note, in Python and on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from augury.config.engine import EngineConfig
from augury.config.errors import ConfigError
from augury.config.facts import ModelFacts
from augury.config.harmless import FLAGS, HARMLESS, OF_A_SERVER, SWITCHES
from augury.config.surfaces import unfold_yaml
from augury.model.checkpoint import read_config
from augury.model.errors import ModelError
from augury.tools.run.serve_words import from_vllm


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("trust_remote_code", True),
        ("compilation_config", {"mode": 3}),
        ("compilation_config", 3),
        ("enable_expert_parallel", True),
        ("served_model_name", ["a"]),
        ("generation_config", "vllm"),
        ("attention_backend", "FLASHINFER"),
        ("swap_space", 16),
    ],
)
def test_it_is_taken_with_a_note(name: str, value: Any, caplog: pytest.LogCaptureFixture) -> None:
    EngineConfig.parse(model="m", **{name: value})
    assert f"{name} changes nothing here: " in caplog.text


def test_what_says_nothing_makes_no_note(caplog: pytest.LogCaptureFixture) -> None:
    EngineConfig.parse(model="m", trust_remote_code=False, compilation_config=None, generation_config="auto")
    assert not caplog.text


@pytest.mark.parametrize("given", [{"data_parallel_size": 2}, {"pipeline_parallel_size": 2}, {"trust_remote": True}])
def test_what_would_change_something_is_still_refused(given: dict[str, Any]) -> None:
    with pytest.raises((ConfigError, TypeError)):
        EngineConfig.parse(model="m", **given)


def test_overrides_that_repeat_the_file_are_taken() -> None:
    facts = ModelFacts("m", {"model_type": "llama", "rope_theta": 10000.0})
    EngineConfig.parse(model="m", hf_overrides={"rope_theta": 10000.0, "torch_dtype": "bfloat16"}).check_speculation(
        facts
    )
    changed = EngineConfig.parse(model="m", hf_overrides={"rope_theta": 5.0})
    with pytest.raises(
        ConfigError, match=r"hf_overrides.rope_theta=5.0 is not applied here, and config.json has 10000"
    ):
        changed.check_speculation(facts)
    with pytest.raises(ConfigError, match="could not be read"):
        changed.check_speculation(None)


def test_names_are_told_once() -> None:
    assert not HARMLESS.keys() & OF_A_SERVER.keys() and set(SWITCHES) <= HARMLESS.keys() | FLAGS.keys()
    assert not (HARMLESS.keys() | OF_A_SERVER.keys()) & EngineConfig.model_fields.keys()


def test_the_command_line_takes_them(capsys: pytest.CaptureFixture[str]) -> None:
    words = 'serve m --trust-remote-code --compilation-config {"mode":3} --enable-expert-parallel -pp 1 -tp 2 --port 1'
    assert from_vllm(words.split()) == ["serve", "m", "-tp", "2", "--port", "1"]
    said = capsys.readouterr().err
    assert said.count("note: ") == 3 and "--enable-expert-parallel changes nothing here: the model runs" in said
    with pytest.raises(ConfigError, match="pipeline_parallel_size=2"):
        from_vllm(["serve", "m", "-pp", "2"])


def test_a_file_may_name_the_model(tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text("model: org/m\nport: 8001\nserved-model-name: [a, b]\ntrust_remote_code: false\n")
    expected = ["serve", "org/m", "--port", "8001", "--served-model-name", "a", "--served-model-name", "b"]
    assert from_vllm(unfold_yaml(["serve", "--config", str(file)])) == expected
    mine = from_vllm(unfold_yaml(["serve", "mine", "--config", str(file), "--port", "9"]))
    assert mine[:2] == ["serve", "mine"] and "org/m" not in mine and mine[-2:] == ["--port", "9"]
    assert from_vllm(["serve", "--model", "m"]) == ["serve", "m"], "vLLM's old way"
    with pytest.raises(ConfigError, match="--model needs a value"):
        from_vllm(["serve", "--model"])


def test_a_model_that_needs_its_own_code_is_refused_whatever_is_trusted(tmp_path: Path) -> None:
    config = {"model_type": "nobody", "auto_map": {"AutoConfig": "configuration_nobody.NobodyConfig"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "configuration_nobody.py").write_text("raise SystemExit('it ran')\n")
    with pytest.raises(ModelError, match=r"config\.json"):
        read_config(tmp_path)


def test_what_parses_answers_is_passed_on(capsys: pytest.CaptureFixture[str]) -> None:
    words = "serve m --enable-auto-tool-choice --tool-call-parser hermes --reasoning-parser=qwen3 --port 8001"
    assert from_vllm(words.split()) == words.split()
    assert from_vllm(["serve", "m", "--enable-reasoning"]) == ["serve", "m"]
    assert capsys.readouterr().err.count("--reasoning-parser alone says") == 1
    assert not FLAGS.keys() & (HARMLESS.keys() | OF_A_SERVER.keys())


def test_what_was_chosen_for_an_engine_need_not_be_given_to_one_that_borrows_its_weights() -> None:
    names = ["dtype", "max_model_len"]
    lends, borrows = EngineConfig.parse(model="m"), EngineConfig.parse(model="m")
    lends.max_model_len = 8192  # as an engine does at its start
    assert borrows.differs(lends, names) is None
    assert EngineConfig.parse(model="m", max_model_len=8192).differs(lends, names) is None
    assert EngineConfig.parse(model="m", max_model_len=64).differs(lends, names) == "max_model_len"
    assert borrows.differs(EngineConfig.parse(model="m", max_model_len=64), names) == "max_model_len"
    assert borrows.differs(EngineConfig.parse(model="m", dtype="float16"), names) == "dtype"


def test_more_requests_at_a_time_than_any_machine_has_memory_for_are_refused() -> None:
    assert EngineConfig.parse(model="m", max_num_seqs=65536).max_num_seqs == 65536
    with pytest.raises(ConfigError, match="max_num_seqs=99999999999: input should be less than or equal to 65536"):
        EngineConfig.parse(model="m", max_num_seqs=99999999999)
