"""What the doctor prints for programs: GitHub's workflow commands and SARIF; files that are not its own."""

from __future__ import annotations

import json
import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from augury.cli import app
from augury.tools.doctor.annotations import annotated
from augury.tools.doctor.examine import Examination, Examined
from augury.tools.doctor.findings import Finding

GONE = '{"method": "ngram", "num_speculative_tokens": 4, "disable_mqa_scorer": true}'
LINE = f"vllm serve m -sc '{GONE}'\n"
COMMAND = re.compile(r"::(error|warning|notice) ([^:]*)::(.*)")


def read(line: str) -> tuple[str, dict[str, str], str]:
    """A workflow command as the runner reads it (actions/runner, ActionCommand.cs)."""
    found = COMMAND.fullmatch(line)
    assert found, line
    pairs = dict(one.split("=", 1) for one in found[2].split(","))
    plain = {name: unescaped(value.replace("%3A", ":").replace("%2C", ",")) for name, value in pairs.items()}
    return found[1], plain, unescaped(found[3])


def unescaped(text: str) -> str:
    return text.replace("%0D", "\r").replace("%0A", "\n").replace("%25", "%")


def examined(name: str, message: str, severity: str = "error") -> Examination:
    finding = Finding("an-id", severity, message, "why.", "fix.", "", 0, 3)  # type: ignore[arg-type]
    return Examination(name, "vllm serve\n", [Examined("vllm serve", 0, None, "nobody", [finding])])


@given(st.text(min_size=1), st.text())
def test_no_text_breaks_out_of_its_line(name: str, message: str) -> None:
    [line] = annotated([examined(name, message)])
    assert "\n" not in line and "\r" not in line
    kind, told, said = read(line)
    assert kind == "error" and set(told) <= {"file", "line", "endLine", "col", "endColumn", "title"}
    assert said.endswith("why. Fix: fix.")


def test_errors_come_first_and_once() -> None:
    found = [examined("b", "x", "note"), examined("a", "y", "warning"), examined("a", "z"), examined("a", "z")]
    lines = [read(line) for line in annotated(found)]
    assert [(kind, told["file"]) for kind, told, _ in lines] == [("error", "a"), ("warning", "a"), ("notice", "b")]
    assert lines[0][1] == {
        "file": "a",
        "line": "1",
        "endLine": "1",
        "col": "1",
        "endColumn": "4",
        "title": "augury doctor: an-id",
    }


def test_the_command_prints_them(tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    file.write_text(LINE)
    result = CliRunner().invoke(app, ["doctor", str(file), "--format", "github"])
    kind, told, said = read(result.stdout.splitlines()[0])
    assert result.exit_code == 1 and kind == "error" and told["file"] == str(file) and told["line"] == "1"
    assert "disable_mqa_scorer" in said
    log = json.loads(CliRunner().invoke(app, ["doctor", str(file), "--format", "sarif"]).stdout)
    assert log["version"] == "2.1.0" and "key-gone" in {one["ruleId"] for one in log["runs"][0]["results"]}
    assert json.loads(CliRunner().invoke(app, ["doctor", str(file), "--format", "json"]).stdout)["exit_code"] == 1
    both = CliRunner().invoke(app, ["doctor", str(file), "--format", "github", "--fix"])
    assert both.exit_code == 2 and "leave one out" in both.stderr


def test_a_file_of_the_name_of_a_command_below(tmp_path: Path) -> None:
    (tmp_path / "serve").write_text("#!/bin/sh\n" + LINE)
    assert CliRunner().invoke(app, ["doctor", str(tmp_path / "serve")]).exit_code == 1
    assert "AdmissionReviews" in CliRunner().invoke(app, ["doctor", "serve", "--help"]).stdout
    assert "serve" in CliRunner().invoke(app, ["doctor", "--help"]).stdout


def test_the_webhook_says_what_it_lacks(tmp_path: Path) -> None:
    def said(*words: str) -> str:
        result = CliRunner().invoke(app, ["doctor", "serve", *words])
        assert result.exit_code == 2
        return result.stderr

    assert "give --tls-cert and --tls-key" in said()
    assert "belong together" in said("--tls-key", "a")
    assert "No such file" in said("--tls-key", str(tmp_path / "a"), "--tls-cert", str(tmp_path / "b"))
    (tmp_path / "a").write_text("no certificate")
    assert "give a PEM pair" in said("--tls-key", str(tmp_path / "a"), "--tls-cert", str(tmp_path / "a"))
    assert "--vllm-version" in said("--vllm-version", "0.1", "--host", "127.0.0.1")
