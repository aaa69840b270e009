"""`augury doctor --from A --to B`: what an upgrade changes for a command, on the screen and as JSON."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from doctor_fits import at
from rich.console import Console
from typer.testing import CliRunner

from augury.cli import app
from augury.config.versions import version
from augury.tools.doctor.examine import CheckedAgainst, examine
from augury.tools.doctor.upgrade import Upgrade, upgrades
from augury.tools.doctor.upgrade_screen import show_upgrades
from augury.tools.knowledge.base import knowledge
from augury.tools.knowledge.conditions import KnownFacts, holds

LLAMA, DEEPSEEK, HYBRID = "meta-llama/Llama-3.1-8B-Instruct", "deepseek-ai/DeepSeek-V3", "Qwen/Qwen3.6-27B"
EAGLE = {"method": "eagle3", "model": "org/eagle3-head", "num_speculative_tokens": 3}
MTP = {"method": "mtp", "num_speculative_tokens": 1}
DFLASH2 = {"method": "dflash", "model": "z-lab/Qwen3.8-27B-DFlash2", "num_speculative_tokens": 7}
DRAFT = {"method": "draft_model", "model": "org/small", "num_speculative_tokens": 4}
NGRAM = {"method": "ngram", "num_speculative_tokens": 4}
SAMPLED = {**EAGLE, "draft_sample_method": "probabilistic"}

# For each change: a command that it concerns, and one that it does not.
CONCERNS: dict[str, tuple[Any, Any]] = {
    "change-async-default": (at(LLAMA, EAGLE), at(LLAMA, EAGLE, flags="--no-async-scheduling")),
    "change-unknown-keys": (at(LLAMA, EAGLE), at(LLAMA, None)),
    "change-zero-bubble": (at(LLAMA, EAGLE), at(LLAMA, NGRAM)),
    "change-draft-probabilities": (at(LLAMA, DRAFT), at(LLAMA, EAGLE)),
    "change-draft-backend": (at(LLAMA, EAGLE, flags="--attention-backend FLASHINFER"), at(LLAMA, EAGLE)),
    "change-decode-padding": (at(LLAMA, EAGLE), at(LLAMA, None)),
    "change-new-runner": (at(LLAMA, EAGLE), at(LLAMA, {"method": "suffix"})),
    "change-hybrid-cache": (at(HYBRID, MTP), at(HYBRID, MTP, flags="--no-enable-prefix-caching")),
    "change-heads-positions": (at(LLAMA, EAGLE), at(DEEPSEEK, MTP)),
    "change-draft-async": (at(LLAMA, DRAFT), at(LLAMA, EAGLE)),
    "change-dflash2": (at(HYBRID, DFLASH2), at(HYBRID, {**DFLASH2, "draft_sample_method": "greedy"})),
    "change-handshake": (at(LLAMA, EAGLE, flags="--kv-transfer-config '{}'"), at(LLAMA, EAGLE)),
    "change-speculator-merge": (
        at("RedHatAI/Qwen3-8B-speculator.eagle3", {"num_speculative_tokens": 5}),
        at(LLAMA, EAGLE),
    ),
    "change-token-budget": (
        at(LLAMA, DFLASH2, flags="--max-num-seqs 32 --max-num-batched-tokens 16k"),
        at(LLAMA, DFLASH2),
    ),
    "change-runner-all": (at(LLAMA, EAGLE), at(LLAMA, DRAFT)),
    "change-noise": (at(LLAMA, SAMPLED), at(LLAMA, EAGLE)),
    "change-pipeline": (at(LLAMA, EAGLE, flags="-pp 2"), at(LLAMA, EAGLE)),
    "change-draft-runner": (at(LLAMA, DRAFT), at(LLAMA, EAGLE)),
    "change-ngram": (at(LLAMA, NGRAM), at(LLAMA, EAGLE)),
}


def doctor(*words: str) -> Any:
    return CliRunner().invoke(app, ["doctor", *words])


def only(command: str, old: str, new: str) -> Upgrade:
    [found] = upgrades(command, "", CheckedAgainst(), old, new)
    return found


def test_every_change_has_a_release_and_a_command_that_it_concerns() -> None:
    assert set(CONCERNS) == set(knowledge("changes"))
    for name, (yes, no) in CONCERNS.items():
        entry = knowledge("changes")[name]
        assert entry.versions.since and not entry.versions.until and not entry.linted
        for case, wanted in ((yes, True), (no, False)):
            [command] = examine(case.text, "", CheckedAgainst("0.32")).commands
            assert bool(holds(entry.condition, KnownFacts(command.facts, command.keys))) is wanted, (name, case.text)


@pytest.mark.parametrize(
    ("old", "new", "told"), [("0.25", "0.26", True), ("0.26", "0.28", False), ("0.24", "0.25", False)]
)
def test_a_change_is_told_where_the_upgrade_crosses_its_release(old: str, new: str, told: bool) -> None:
    found = only(at(HYBRID, MTP).text, old, new)
    assert ("change-hybrid-cache" in [entry.id for entry in found.changes]) is told
    assert ("hybrid-prefix-cache-text" in [finding.id for finding in found.opened]) is told
    assert any("both releases" in text for text in found.measure) is told, "wrong text asks for a comparison"


def test_the_default_that_cost_a_team_is_told() -> None:
    found = only(at(HYBRID, DFLASH2).text, "0.27", "0.28")
    assert "change-dflash2" in [entry.id for entry in found.changes]
    assert "draft-sampling-0.28" in [finding.id for finding in found.opened]
    assert any("temperature" in text for text in found.measure)


def test_keys_that_go_and_come() -> None:
    found = only(at(LLAMA, {**EAGLE, "disable_by_batch_size": 8}).text, "0.16", "0.17")
    assert [finding.id for finding in found.keys] == ["key-gone"] and not found.opened
    later = only(at(LLAMA, EAGLE).text, "0.27", "0.30")
    assert {"enable_adaptive_verification", "disable_eagle_block_drop"} <= set(later.new_keys)
    assert "suffix_decoding_max_tree_depth" not in later.new_keys and "tree" not in later.new_keys
    assert not only(at(LLAMA, EAGLE).text, "0.27", "0.27.1").new_keys


def test_what_an_upgrade_closes_and_what_stays() -> None:
    found = only(at(LLAMA, EAGLE, flags="-pp 2 --enforce-eager").text, "0.16", "0.17")
    assert "pipeline-too-early" in [finding.id for finding in found.closed]
    assert "pipeline-broadcast" in [finding.id for finding in found.opened]
    assert not only(at(LLAMA, None).text, "0.24", "0.32").changes


def test_the_screen_and_the_exit_code(tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    file.write_text(at(LLAMA, {**EAGLE, "disable_by_batch_size": 8}).text + "\n" + at(LLAMA, None).text + "\n")
    shown = doctor(str(file), "--from", "0.16", "--to", "0.17")
    lines = shown.stdout.splitlines()
    assert shown.exit_code == 1 and lines[0].startswith(f"{file}:1: vllm serve {LLAMA}  0.16 to 0.17")
    assert any(line.startswith("  keys ") and "error[key-gone]" in line for line in lines)
    assert lines[-1] == "vLLM 0.16 to 0.17: something changes for 1 of 2 commands, 1 refused or broken by it"
    calm = doctor(at(LLAMA, None).text, "--from", "0.24", "--to", "0.32")
    assert calm.exit_code == 0 and calm.stdout.strip() == "vLLM 0.24 to 0.32: something changes for 0 of 1 command"


@pytest.mark.parametrize("width", [60, 100])
def test_it_fits_a_terminal(width: int) -> None:
    screen = io.StringIO()
    console = Console(width=width, force_terminal=True, color_system=None, highlight=False, file=screen)
    show_upgrades(
        upgrades(at(HYBRID, DFLASH2).text, "run.sh", CheckedAgainst(), "0.24", "0.30"), "0.24", "0.30", console
    )
    lines = screen.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert sum(line.startswith("  default") for line in lines) == 1, "a label stands once for its rows"


def test_json_has_every_part() -> None:
    answer = json.loads(doctor(at(HYBRID, DFLASH2).text, "--from", "0.27", "--to", "0.28", "--json").stdout)
    [command] = answer["commands"]
    assert (answer["from"], answer["to"], answer["exit_code"]) == ("0.27", "0.28", 0)
    assert command["target"] == HYBRID and command["changes"][0]["since"] == "0.28"
    assert {"keys", "new_keys", "opened", "closed", "stays", "measure"} <= set(command)
    assert version(command["changes"][0]["since"]) > version("0.27")


@pytest.mark.parametrize(
    "words",
    [
        ("--from", "0.27"),
        ("--to", "0.28"),
        ("--from", "0.28", "--to", "0.27"),
        ("--from", "0.27", "--to", "new"),
        ("--from", "0.27", "--to", "0.28", "--fix"),
        ("--from", "0.27", "--to", "0.28", "--vllm-version", "0.30"),
    ],
)
def test_what_makes_no_upgrade_is_refused_in_one_line(words: tuple[str, ...]) -> None:
    result = doctor(at(LLAMA, EAGLE).text, *words)
    assert result.exit_code == 2 and result.stderr.startswith("error: ") and result.stderr.count("\n") == 1


@pytest.mark.parametrize(("old", "new", "named"), [("0.27", "new", "--to='new'"), ("0.5", "0.27", "--from='0.5'")])
def test_the_option_that_is_wrong_is_the_one_that_is_named(old: str, new: str, named: str) -> None:
    assert doctor(at(LLAMA, EAGLE).text, "--from", old, "--to", new).stderr.startswith(f"error: {named}")
