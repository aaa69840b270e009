"""The pre-commit hook and the GitHub Action, run as their programs run them."""

from __future__ import annotations

import json
import os
import re
import shlex
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from augury.cli import app

ROOT = Path(__file__).parents[2]
GONE = '{"method": "ngram", "num_speculative_tokens": 4, "disable_mqa_scorer": true}'
POD = f"kind: Pod\nspec:\n  containers:\n  - image: vllm/vllm-openai:v0.28.0\n    args: [--model, m, -sc, '{GONE}']\n"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "pod.yaml").write_text(POD)
    (tmp_path / "values.yaml").write_text("a: {{ .Values.b }}\n")
    (tmp_path / "chart.yaml").write_text("{{- if .Values.a }}\nargs: [--speculative-config, b]\n{{- end }}\n")
    (tmp_path / "run.sh").write_text("#!/bin/sh\nls\n")
    (tmp_path / "blob.json").write_bytes(b"\xff\xfe\x00")
    return tmp_path


def hook() -> dict[str, Any]:
    [found] = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    return dict(found)


def test_pre_commit_takes_the_manifest() -> None:
    clientlib = pytest.importorskip("pre_commit.clientlib", reason="pre-commit is not installed")
    [found] = clientlib.load_manifest(str(ROOT / ".pre-commit-hooks.yaml"))
    assert found["id"] == "augury-doctor" and found["language"] == "python" and found["require_serial"]


def test_the_hook_names_what_is_wrong_and_passes_over_the_rest(files: Path) -> None:
    program, *words = shlex.split(hook()["entry"])
    named = sorted(str(path) for path in files.iterdir())
    result = CliRunner().invoke(app, [*words, *named], prog_name=program)
    assert program == "augury" and result.exit_code == 1
    assert "pod.yaml:5" in result.stdout and "key-gone" in result.stdout
    assert "not read" in result.stderr and "chart.yaml" in result.stderr, "a template that may hold a command is named"
    (files / "pod.yaml").write_text(POD.replace(', "disable_mqa_scorer": true', ""))
    assert CliRunner().invoke(app, [*words, *named]).exit_code == 0
    others = [name for name in named if not name.endswith("pod.yaml")]
    clean = CliRunner().invoke(app, [*words, *others])
    assert clean.exit_code == 0 and clean.stdout == ""


def action() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())
    return found


def run_step(files: Path, **inputs: str) -> tuple[int, str, str]:
    """The last step, with the environment that its runner gives it: exit code, what it printed, its outputs."""
    program, output = files.parent / "augury", files.parent / "output"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m augury "$@"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    output.write_text("")
    declared = {name: one["default"] for name, one in action()["inputs"].items()}
    env = {
        name: declared[re.search(r"inputs\.([\w-]+)", value)[1]]  # type: ignore[index]
        for name, value in action()["runs"]["steps"][-1]["env"].items()
    }
    more = {"AUGURY": str(program), "GITHUB_OUTPUT": str(output), "GITHUB_ACTION_PATH": str(ROOT)}
    step = action()["runs"]["steps"][-1]["run"]
    ran = subprocess.run(
        ["bash", "-e", "-c", step],
        cwd=files,
        env={**os.environ, **env, **more, **inputs},
        text=True,
        capture_output=True,
    )
    return ran.returncode, ran.stdout, output.read_text()


def test_the_action_annotates_and_fails(files: Path) -> None:
    code, printed, outputs = run_step(files, SARIF_FILE="doctor.sarif")
    assert (code, outputs) == (1, "exit-code=1\n")
    lines = printed.splitlines()
    assert lines[0].startswith("::error file=pod.yaml,line=5,endLine=5,col=") and "key-gone" in lines[0]
    assert all(line.startswith(("::error ", "::notice ")) for line in lines)
    assert json.loads((files / "doctor.sarif").read_text())["runs"][0]["results"]


def test_the_action_passes_what_is_clean(files: Path) -> None:
    (files / "pod.yaml").unlink()
    assert run_step(files)[0] == 0
    code, printed, _ = run_step(files, FAIL_ON="everything")
    assert code == 2 and printed.startswith("::error ")
    assert run_step(files, PATHS="no-such-file")[0] == 2


def test_blank_paths_are_the_repository(files: Path) -> None:
    assert run_step(files, PATHS=" \n")[0] == 1


def test_no_array_of_the_step_is_read_empty() -> None:
    """Under `set -u` the bash of macOS takes an empty array for an unset variable."""
    script = (ROOT / "deploy" / "github" / "doctor.sh").read_text()
    bare = re.sub(r"\$\{(\w+)\[@\]\+\"\$\{\1\[@\]\}\"\}", "", script)
    assert re.findall(r"\$\{(\w+)\[@\]\}", bare) == ["paths"]  # which has one element at least


def test_the_jobs_own_python_stays_as_it_is() -> None:
    python, install = action()["runs"]["steps"][:2]
    assert python["with"]["update-environment"] is False
    assert install["env"]["PYTHON"] == f"${{{{ steps.{python['id']}.outputs.python-path }}}}"
    assert install["run"].startswith('"$PYTHON" -m venv ')


def test_inputs_never_become_code() -> None:
    for step in action()["runs"]["steps"]:
        assert "${{" not in step.get("run", "")
