"""What the doctor did not check for want of files, on the screen, in JSON and in SARIF; and what names tell instead."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from augury.cli import app
from augury.config.facts import read_facts
from augury.config.versions import version
from augury.tools.doctor.examine import CheckedAgainst, examine
from augury.tools.doctor.report import sarif
from augury.tools.doctor.target_names import active_billions, name_facts, pair_facts
from augury.tools.knowledge.families import by_type, families

LLAMA = {"model_type": "llama", "vocab_size": 128256, "hidden_size": 4096, "num_hidden_layers": 32}
HEAD = {**LLAMA, "architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1}
EAGLE = """-sc '{"method": "eagle3", "model": "a/EAGLE3-x", "num_speculative_tokens": 3}'"""


def directory(path: Path, config: dict[str, Any]) -> str:
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    return str(path)


def left(command: str, asked: CheckedAgainst = CheckedAgainst()) -> list[str]:
    return [one.how for found in examine(command, "", asked).commands for one in found.unchecked]


def test_clean_is_said_only_when_everything_was_looked_at(tmp_path: Path) -> None:
    target, head = directory(tmp_path / "target", LLAMA), directory(tmp_path / "head", HEAD)
    steps = (
        ([], "nothing found", 2),
        (["--target", target], "nothing found", 1),
        (["--target", target, "--drafter", head], "clean", 0),
    )
    for options, word, number in steps:
        command = ["doctor", f"vllm serve meta-llama/Llama-3.1-8B {EAGLE}", *options]
        shown = CliRunner().invoke(app, command).stdout.splitlines()
        assert shown[-1].startswith(f"{word} in 1 command") and len(shown) == 1 + number
        answer = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)
        told = answer["files"][0]["commands"][0]["unchecked"]
        assert answer["summary"]["unchecked"] == len(told) == number
        assert {one["how"] for one in told} == {"--target DIR", "--drafter DIR"} - {f"{o} DIR" for o in options}


def test_each_method_leaves_open_what_its_files_would_tell() -> None:
    assert left(f"vllm serve a/b {EAGLE}") == ["--target DIR", "--drafter DIR"]
    assert left("""vllm serve a/b -sc '{"method": "ngram", "num_speculative_tokens": 3}'""") == ["--target DIR"]
    assert left("vllm serve a/b") == [], "it does not speculate, so nothing is asked"
    assert "lint the finished command as well" in left('vllm serve a/b -sc "$SPEC"')
    for handed_on in ('"$@"', '"${ARGS[@]}"', "$${ARGS[@]}"):
        assert left(f"vllm serve a/b {handed_on}") == ["lint the finished command as well"], handed_on
    assert left('ARGS=(--port 80)\nvllm serve a/b "${ARGS[@]}"') == [], "the file says what they are"
    lookup = examine("""vllm serve Qwen/Qwen3-8B -sc '{"method": "ngram", "num_speculative_tokens": 3}'""")
    [one] = lookup.commands[0].unchecked
    assert one.what == "the target: its context and quantisation" and "Qwen/Qwen3-8B" in one.why and "Qwen3" in one.why


def test_sarif_tells_it_as_a_notification() -> None:
    [run] = sarif([examine(f"vllm serve a/b {EAGLE}", "run.sh")])["runs"]
    [told] = run["invocations"][0]["toolExecutionNotifications"]
    assert run["invocations"][0]["executionSuccessful"] is True and told["level"] == "note"
    assert "--target DIR" in told["message"]["text"] and "--drafter DIR" in told["message"]["text"]
    assert told["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "run.sh"
    [run] = sarif([examine("vllm serve a/b", "run.sh")])["runs"]
    assert run["invocations"][0]["toolExecutionNotifications"] == []


def test_many_things_left_open_take_one_line(tmp_path: Path) -> None:
    for number in range(9):
        (tmp_path / f"{number}.sh").write_text(f"vllm serve a/b{number} {EAGLE}\n")
    shown = CliRunner().invoke(app, ["doctor", str(tmp_path)]).stdout.splitlines()
    assert sum("not checked: " in line for line in shown) == 1
    assert (
        "18 things for lack of files" in shown[-2]
        and "--drafter DIR would allow more checks of 9 commands" in shown[-2]
    )


# --- what names tell -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("meta-llama/Llama-3.1-70B-Instruct", 70),
        ("Qwen/Qwen3-30B-A3B", 3),
        ("mistralai/Mixtral-8x7B-v0.1", 14),
        ("HuggingFaceTB/SmolLM2-135M", 0.135),
        ("Qwen/Qwen2.5-0.5B-Instruct", 0.5),
        ("deepseek-ai/DeepSeek-V3", None),
        ("a/model-4bit", None),
    ],
)
def test_sizes_in_names(name: str, billions: float | None) -> None:
    assert active_billions(name) == billions


def test_a_name_tells_kind_depth_and_release() -> None:
    facts = name_facts("Qwen/Qwen3.6-27B", version("0.28"))
    assert facts["target_hybrid"] and facts["target_multimodal"] and facts["named_depth"] == 1
    assert facts["served_since"] == "0.17" and facts["served_yet"]
    assert not name_facts("Qwen/Qwen3.6-27B", version("0.16"))["served_yet"]
    plain = name_facts("meta-llama/Llama-3.1-8B", version("0.28"))
    assert plain["target_hybrid"] is False and plain["target_multimodal"] is False
    worked_on = name_facts("acme/Llama-3.1-8B-MTP", version("0.32"))
    assert worked_on["named_mtp"] == "unknown" and worked_on["named_family"] == "Llama"
    assert name_facts("<model>", None) == {} and name_facts("m", None) == {}


def test_two_names_tell_whether_they_fit() -> None:
    told = pair_facts("Qwen/Qwen2.5-72B-Instruct", "Qwen/Qwen2.5-0.5B-Instruct")
    assert told["target_tokenizer"] == told["draft_tokenizer"] == "Qwen2"
    assert (told["target_vocab"], told["draft_vocab"]) == (152064, 151936), "padded differently, which vLLM refuses"
    assert (told["target_size"], told["draft_size"], told["size_share"]) == ("72B", "500M", 1)
    assert pair_facts("Qwen/Qwen3-30B-A3B", "Qwen/Qwen3-4B")["size_share"] == 133, "three billion are active"


def test_the_table_names_each_part_and_type_once() -> None:
    parts = [part for row in families() for part in row.names]
    kinds = [kind for row in families() for kind in row.types]
    assert len(set(parts)) == len(parts) and len(set(kinds)) == len(kinds)
    assert all(part == part.lower() for part in parts)
    row = by_type("qwen3_next")
    assert row is not None and row.hybrid and row.family == "Qwen3-Next"
    assert by_type("unheard_of") is None


def test_a_family_has_one_vocabulary_a_tokenizer_unless_padded() -> None:
    """Two tokenizers never share a row's vocabulary by chance: what the doctor refuses rests on these numbers."""
    for row in families():
        assert row.vocab is None or row.tokenizer is not None, row
    sizes = {row.tokenizer: {r.vocab for r in families() if r.tokenizer == row.tokenizer} for row in families()}
    several = {name for name, found in sizes.items() if len(found - {None}) > 1}
    assert several == {"Qwen2"}, several


SPECULATOR = {
    "speculators_model_type": "eagle3",
    "transformer_layer_config": {"model_type": "llama", "hidden_size": 64, "vocab_size": 100},
    "speculators_config": {
        "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
        "verifier": {"name_or_path": "org/target"},
    },
}
ADAPTERS = "vllm serve org/m-speculator.eagle3 --enable-lora --max-num-seqs 512 --max-num-batched-tokens 512"


def test_a_speculator_that_is_served_speculates(tmp_path: Path) -> None:
    """vLLM serves the target that it names; without the files that is not checked, with them it is."""
    [command] = examine(ADAPTERS, "", CheckedAgainst("0.32")).commands
    assert "itself sets" in command.unchecked[0].what and command.unchecked[0].how == "--target DIR"
    (tmp_path / "config.json").write_text(json.dumps(SPECULATOR))
    given = read_facts(str(tmp_path))
    [command] = examine(ADAPTERS, "", CheckedAgainst("0.32", given)).commands
    assert [one.id for one in command.findings if one.severity == "error"] == ["lora-token-budget"]
    assert "org/target" in command.unchecked[0].why
    assert not [
        one for one in examine(ADAPTERS, "", CheckedAgainst("0.9", given)).findings if one.id == "lora-token-budget"
    ]


@pytest.mark.parametrize("nothing", ["''", "None", "null"])
def test_no_configuration_is_none(nothing: str) -> None:
    """As vLLM's parser has it: each of them leaves speculation off."""
    found = examine(f"vllm serve m --port 1 --speculative-config {nothing}")
    assert not found.findings and found.commands[0].facts["speculates"] is False
    assert [one.id for one in examine("vllm serve m --speculative-config none").findings] == ["json-broken"]


def test_a_configuration_that_cannot_be_read_is_not_filled_in_elsewhere() -> None:
    [command] = examine("vllm serve m --speculative-config none").commands
    assert not any("filled in" in one.what for one in command.unchecked)
