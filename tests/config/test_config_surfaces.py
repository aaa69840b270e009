"""Every way to write a speculative_config leads to the same dictionary, and the command answers with an exit code."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from config_cases import NGRAM

from augury.config.engine import EngineConfig
from augury.config.errors import ConfigError
from augury.config.profiles import PROFILES
from augury.config.resolve import resolve
from augury.config.speculative import SpeculativeConfig
from augury.config.speculators import swap
from augury.config.surfaces import fold_dotted, from_json, gather, read_yaml, unfold_yaml
from augury.tools.config.keys import page

ROOT = Path(__file__).parents[2]


def folded(*words: str) -> Any:
    """What the dotted flags become."""
    result = fold_dotted(["generate", *words])
    assert result[:2] == ["generate", "--speculative-config"]
    return json.loads(result[2])


def test_dotted_flags() -> None:
    assert folded("-sc.method", "ngram", "-sc.num_speculative_tokens", "3") == NGRAM
    assert folded("--speculative-config.method=ngram", "--speculative_config.num-speculative-tokens=3") == NGRAM
    assert folded("-sc", '{"method": "ngram"}', "-sc.num_speculative_tokens", "3") == NGRAM
    assert folded("-sc.tree.max_nodes", "8", "-sc.tree.top_k", "2") == {"tree": {"max_nodes": 8, "top_k": 2}}
    assert folded("-sc", '{"tree": {"top_k": 2}}', "-sc.tree.max_nodes", "8") == {"tree": {"top_k": 2, "max_nodes": 8}}
    assert folded("-sc.synthetic_acceptance_rates+", "1,0.5", "-sc.synthetic_acceptance_rates+", "0") == {
        "synthetic_acceptance_rates": [1, 0.5, 0]
    }
    assert folded("-sc.max_model_len", "2k") == {"max_model_len": 2000}
    assert folded("-sc.max_model_len", "2K") == {"max_model_len": 2048}
    assert folded("-sc.model", "Qwen/Qwen3-0.6B") == {"model": "Qwen/Qwen3-0.6B"}
    assert folded("-sc.parallel_drafting", "true") == {"parallel_drafting": True}


def test_other_words_stay_where_they_are() -> None:
    assert fold_dotted(["generate", "a prompt", "-n", "2"]) == ["generate", "a prompt", "-n", "2"]
    assert fold_dotted(["generate", "-sc.method", "ngram", "a prompt", "--json"])[:1] == ["generate"]
    assert fold_dotted(["generate", "--", "-sc.method", "x"]) == ["generate", "--", "-sc.method", "x"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["-sc.method"], "needs a value"),
        (["-sc.method", "a", "-sc.method", "b"], "given twice"),
        (["-sc", '{"method": "a"}', "-sc.method", "b"], "say the same thing twice"),
        (["-sc.tree", "3", "-sc.tree.top_k", "2"], "cannot be both"),
        (["-sc.model", "x", "-sc.model+", "y"], "adds to a list"),
        (["-sc", "{method: ngram}", "-sc.model", "y"], "not JSON"),
    ],
)
def test_dotted_flags_that_contradict(words: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        fold_dotted(["generate", *words])


def test_shortcuts_and_environment() -> None:
    shortcuts = {"spec_method": "ngram", "spec_model": None, "spec_tokens": 3}
    stored = {"AUGURY_SPECULATIVE_CONFIG": '{"method": "suffix"}'}
    assert gather(None, shortcuts, stored) == NGRAM
    assert gather('{"method": "ngram"}', {"spec_tokens": 3}, stored) == NGRAM
    assert gather(None, {}, stored) == {"method": "suffix"}
    assert gather(None, {}, {}) is None
    assert gather("{}", {}, stored) == {}
    with pytest.raises(ConfigError, match="--spec-tokens"):
        gather(json.dumps(NGRAM), {"spec_tokens": 3})
    with pytest.raises(ConfigError, match="AUGURY_SPECULATIVE_CONFIG is not JSON"):
        gather(None, {}, {"AUGURY_SPECULATIVE_CONFIG": "ngram"})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{method:ngram}", "quotes"),
        ("[1]", "JSON object"),
        ("{'a': 1}", "not JSON"),
        ("[" * 99999, "deep|JSON"),
        ('{"k": ' + "9" * 5000 + "}", "digits"),
        ('{"a": 1, "a": 2}', "given twice"),
    ],
)
def test_json_errors(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        from_json(text)


def test_yaml(tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text(
        "model: default\nmax_tokens: 5\njson: true\nspeculative-config:\n  method: ngram\n  num_speculative_tokens: 3\n"
        "stop: [a, b]\nseed: null\n"
    )
    words = unfold_yaml(["generate", "hello", "--config", str(file), "--max-tokens", "9"])
    expected = f"generate --model default --json --speculative-config '{json.dumps(NGRAM)}' --stop a --stop b"
    assert words == shlex.split(f"{expected} hello --max-tokens 9")
    file.write_text("chat: false\nspeculative-config: {method: 2020-01-01}")
    expected = """generate --raw --speculative-config '{"method": "2020-01-01"}' -- --config"""
    assert unfold_yaml(["generate", "--config", str(file), "--", "--config"]) == shlex.split(expected)
    file.write_text("a: &x {b: *x}")
    with pytest.raises(ConfigError, match="refer to itself"):
        unfold_yaml(["generate", "--config", str(file)])
    for text, says in (("- a", "mapping"), ("a: [", "not YAML")):
        file.write_text(text)
        with pytest.raises(ConfigError, match=says):
            read_yaml(file)
    with pytest.raises(ConfigError, match="No such file"):
        read_yaml(tmp_path / "absent.yaml")


def speculator(directory: Path, **changes: Any) -> str:
    """A speculators-format checkpoint's config.json."""
    directory.mkdir(exist_ok=True)
    inner = {"verifier": {"name_or_path": "meta/llama"}, "proposal_methods": [{"speculative_tokens": 5}]}
    config = {
        "speculators_model_type": "eagle3",
        "speculators_config": inner,
        "transformer_layer_config": {},
        **changes,
    }
    (directory / "config.json").write_text(json.dumps(config))
    return str(directory)


def test_a_speculator_in_the_targets_place(tmp_path: Path) -> None:
    model = speculator(tmp_path / "a")
    swapped = swap(model, {"num_speculative_tokens": 2})
    assert swapped is not None
    assert swapped == ("meta/llama", {"method": "eagle3", "model": model, "num_speculative_tokens": 2})
    config = EngineConfig.parse(model=model)
    assert config.model == "meta/llama" and config.speculative_config is not None
    assert config.speculative_config.num_speculative_tokens == 5
    parallel = swap(speculator(tmp_path / "b", speculators_model_type="peagle"), None)
    assert parallel is not None
    assert (
        parallel.speculative_config["method"] == "eagle3" and parallel.speculative_config["parallel_drafting"] is True
    )
    assert swap("some/other", None) is None


@pytest.mark.parametrize(
    ("changes", "given", "says"),
    [
        ({"speculators_model_type": "new"}, None, "not known"),
        ({"speculators_config": {}}, None, "without a target"),
        ({"transformer_layer_config": None}, None, "transformer_layer_config"),
        ({}, {"method": "ngram"}, "is fixed to 'eagle3'"),
    ],
)
def test_speculators_that_cannot_be_used(tmp_path: Path, changes: dict[str, Any], given: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        swap(speculator(tmp_path, **changes), given)


def test_arguments_beside_speculative_config() -> None:
    sampler = {"enable_entropy_verify": True}
    config = EngineConfig.parse(
        model="m", spec_method="ngram", spec_tokens=3, additional_config={"rejection_sampler_config": sampler}
    ).speculative_config
    assert config is not None and config.rejection_sample_method == "entropy"
    for wrong, says in (
        ({"spec_method": "ngram", "speculative_config": NGRAM}, "given twice"),
        ({"additional_config": {"x": 1}}, "only rejection_sampler_config"),
        ({"additional_config": {"rejection_sampler_config": sampler}}, "needs a speculative_config"),
    ):
        with pytest.raises(ConfigError, match=says):
            EngineConfig.parse(model="m", **wrong)


def augury(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command as users run it."""
    command = [sys.executable, "-m", "augury", *words]
    import os

    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **environment})


def test_check_answers_by_exit_code(tmp_path: Path) -> None:
    fine = augury("config", "check", json.dumps(NGRAM), "--json")
    assert fine.returncode == 0
    told = json.loads(fine.stdout)
    assert told["config"]["prompt_lookup_max"] == 5 and told["error"] is None and told["derived"]["rows_per_step"] == 4
    remarks = augury(
        "config", "check", "-sc.method", "ngram", "-sc.num_speculative_tokens=3", "-sc.disable_by_batch_size", "4"
    )
    assert remarks.returncode == 1 and "translated" in remarks.stdout
    refused = augury("config", "check", json.dumps({**NGRAM, "disable_by_batch_size": 4}), "--as-of", "0.32")
    assert refused.returncode == 2 and refused.stdout.startswith("refused in vLLM 0.32")
    stored = augury("config", "check", "--json", AUGURY_SPECULATIVE_CONFIG='{"method": "ngrm"}')
    assert stored.returncode == 2 and "did you mean 'ngram'" in json.loads(stored.stdout)["error"]
    (tmp_path / "f.yaml").write_text(
        f"model: {tmp_path}\nspeculative_config: {{method: mtp, num_speculative_tokens: 1}}\n"
    )
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    from_file = augury("config", "check", "--config", str(tmp_path / "f.yaml"))
    assert from_file.returncode == 2 and "has none known" in from_file.stdout
    first = augury("config", "check", "--config", str(tmp_path / "f.yaml"), AUGURY_SPECULATIVE_CONFIG='{"method": "x"}')
    assert "has none known" in first.stdout  # a file goes before the environment, as in every other command


def test_a_hub_id_in_a_file_is_not_checked_and_not_wrong(tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_text(f"model: org/model\nspeculative-config: {json.dumps(NGRAM)}\n")
    told = augury("config", "check", "--config", str(tmp_path / "f.yaml"), "--as-of", "0.32", "--json")
    assert told.returncode == 0, told
    assert any("org/model is not on this machine" in note["text"] for note in json.loads(told.stdout)["notes"])
    wrong = augury("config", "check", json.dumps(NGRAM), "--target", "org/model", "--as-of", "0.32")
    assert wrong.returncode == 2 and wrong.stderr.startswith("error: --target org/model"), "the option, not vLLM"
    assert "refused" not in wrong.stdout


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ([json.dumps({**NGRAM, "rejection_sample_method": "strict"}), "--as-of", "0.20"], 1, "translated"),
        (["--spec-method", "ngram", "--spec-tokens", "3"], 0, "fine"),
        ([json.dumps(NGRAM), "-sc.prompt_lookup_max", "4"], 0, "prompt_lookup_max: 4"),
        ([json.dumps(NGRAM), "--as-of", "banana"], 2, "not a vLLM release"),
        ([json.dumps(NGRAM), "--target", ""], 2, "name a model's directory"),
        (['{"method": "dspark", "num_speculative_tokens": 3}'], 1, "does not run here"),
        (['{"method": "\\ud800", "num_speculative_tokens": 3}', "--json"], 2, "unknown"),
        (['{"method": "ngram", "num_speculative_tokens": NaN}', "--json"], 2, "num_speculative_tokens"),
        (["{bad", "--json"], 2, "not JSON"),
    ],
)
def test_check_says_it_in_one_piece(words: list[str], code: int, says: str) -> None:
    done = augury("config", "check", *words)
    assert done.returncode == code, done
    assert says in done.stdout + done.stderr and "Traceback" not in done.stderr
    if "--json" in words:
        json.loads(done.stdout, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_a_speculator_as_the_target_is_told(tmp_path: Path) -> None:
    done = augury("config", "check", "--target", speculator(tmp_path / "s"))
    assert done.returncode == 0 and "is a speculator" in done.stdout and "not on this machine" in done.stdout


def test_explain_shows_the_four_profiles() -> None:
    told = json.loads(augury("config", "explain", "--json").stdout)["profiles"]
    assert (
        [p["name"] for p in told]
        == [p.name for p in PROFILES]
        == ["low latency", "high throughput", "balanced", "agentic"]
    )
    assert all(p["config"] and p["error"] is None for p in told)
    assert augury("config", "explain", "fastest").returncode == 2


def test_the_docs_page_is_what_the_code_says() -> None:
    written = (ROOT / "docs" / "config.md").read_text()
    assert written == page() + "\n", "run `augury config keys --markdown > docs/config.md`"


def test_what_cannot_run_here_is_refused_before_it_is_loaded() -> None:
    config = EngineConfig.parse(model="m", speculative_config={"method": "dspark", "num_speculative_tokens": 3})
    with pytest.raises(ConfigError, match="inside a target"):
        config.check_speculation(None)
    assert isinstance(config.speculative_config, SpeculativeConfig)


def test_what_runs_instead_is_said() -> None:
    tree = {"method": "draft_model", "model": "a/b", "num_speculative_tokens": 4, "tree": {"top_k": 2}}
    sampled = {"draft_sample_method": "probabilistic", "rejection_sample_method": "block"}
    config = resolve({**tree, **sampled})
    assert config is not None and config.rule == "coupled"
    said = " ".join(note.text for note in config.notes)
    assert "likeliest children" in said and "`coupled` serves 'block'" in said
