"""What `augury advise` prints and reads: narrow screens, older releases, targets that do not fit, files mixed up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from curves import curve_file
from typer.testing import CliRunner

from augury.cli import app
from augury.tools.advise.served import served
from augury.tools.advise.traffic import Traffic
from augury.tools.live.reading import DRAFTING, Reading
from augury.tools.shared.profile import make_profile

PROFILE = make_profile("eagle3", 3, [800, 600, 400], 1000, [200, 200, 200, 400], 2.8, {})


def run(*words: str, columns: int = 80) -> Any:
    return CliRunner().invoke(app, ["advise", *words], env={"COLUMNS": str(columns), "NO_COLOR": "1"})


@pytest.mark.parametrize("columns", [40, 60, 80, 200])
def test_no_screen_loses_a_figure(tmp_path: Path, columns: int) -> None:
    file = tmp_path / "profile.json"
    file.write_text(json.dumps(PROFILE))
    words = (
        "--target",
        "llama-3.1-8b",
        "--gpu",
        "H200",
        "--profile",
        str(file),
        "--concurrency",
        "1,2,4,8,16,32,64,96",
    )
    told, said = run(*words, columns=columns).stdout, json.loads(run(*words, "--json").stdout)
    table = told[: told.index("eagle3: ")]
    assert all(len(line.rstrip()) <= columns for line in table.splitlines())
    for at in said["methods"][0]["by_requests"]:
        assert f"{at['speedup']:.2f} K{at['num_speculative_tokens']}" in table
        assert f"{at['low']:.1f}-{at['high']:.1f}" in table
    heads = [word for line in table.splitlines() if line.strip().startswith("method") for word in line.split()]
    assert [int(word) for word in heads if word.isdigit()] == [1, 2, 4, 8, 16, 32, 64, 96]


def test_a_target_that_does_not_fit_is_one_line() -> None:
    told = run("--target", "llama-3.3-70b", "--gpu", "H100")
    assert told.exit_code == 0 and told.output.count("\n") == 1
    assert "cannot: needs 141.1 GB" in told.output and "--tp 2" in told.output


def test_older_releases_are_given_the_long_option(tmp_path: Path) -> None:
    words = ("--target", "llama-3.1-8b", "--gpu", "H200", "--vllm-version")
    old, new = run(*words, "0.18.1").output, run(*words, "0.19.0").output
    assert "  --speculative-config '{" in old and "-sc '" not in old
    assert "  -sc '{" in new


def test_loads_that_do_not_fit_are_marked() -> None:
    told = run("--target", "llama-3.1-8b", "--gpu", "L4", "--concurrency", "1,128").output
    assert "does" in told and "not fit" in told


def test_files_given_to_the_wrong_option_are_recognised(tmp_path: Path) -> None:
    curve, profile, broken = tmp_path / "curve.json", tmp_path / "profile.json", tmp_path / "broken.json"
    curve.write_text(json.dumps(curve_file()))
    profile.write_text(json.dumps(PROFILE))
    broken.write_text(json.dumps({"method": "eagle3", "num_speculative_tokens": 3, "mean_accept_length": 2.8}))
    words = ("--target", "llama-3.1-8b")
    assert "is a cost curve" in run(*words, "--gpu", "H200", "--profile", str(curve)).output
    assert "is a speculation profile" in run(*words, "--cost-curve", str(profile)).output
    told = run(*words, "--gpu", "H200", "--profile", str(broken)).output
    assert "conditional_accept_rates, marginal_accept_rates" in told and "measurement_conditions are missing" in told


def test_out_keeps_links_and_reads_null_where_nothing_is_advised(tmp_path: Path) -> None:
    there, link = tmp_path / "there.json", tmp_path / "link.json"
    link.symlink_to(there)
    assert run("--target", "qwen3-0.6b", "--gpu", "H200", "--out", str(link)).exit_code == 0
    assert link.is_symlink() and json.loads(there.read_text()) is None


def test_out_does_not_replace_a_device() -> None:
    told = run("--target", "qwen3-0.6b", "--gpu", "H200", "--out", "/dev/full")
    assert told.exit_code == 2 and "--out /dev/full: cannot be written (No space left on device)" in told.output
    assert Path("/dev/full").is_char_device()


def test_a_server_that_has_hardly_drafted_is_no_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    counters = {"finished": 40.0, "generation_tokens": 4000.0, "prompt_tokens": 4000.0, "drafts": 8.0}
    counters |= dict.fromkeys(DRAFTING, 8.0)
    reading = Reading("m", 0.0, counters, accepted_at=(8.0, 8.0), method="ngram")
    monkeypatch.setattr("augury.tools.advise.served.scrape", lambda server: None)
    monkeypatch.setattr("augury.tools.advise.served.readings", lambda scraped: {"m": reading})
    traffic, profile, _ = served("http://here", Traffic())
    assert profile is None and "drafted only 8 times" in traffic.notes[0]
    reading.counters["drafts"] = 800.0
    traffic, profile, _ = served("http://here", Traffic())
    assert profile is not None and not traffic.notes
