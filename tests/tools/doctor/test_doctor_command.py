"""`augury doctor` as a command: looks, exit codes, JSON, SARIF, files changed in place, speed, and any input at all."""

from __future__ import annotations

import io
import json
import os
import re
import resource
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from augury.cli import app
from augury.config.errors import ConfigError
from augury.config.read import KEYS
from augury.methods.registry import ALIASES, METHODS
from augury.tools.doctor.examine import CheckedAgainst, examine
from augury.tools.doctor.fix import mended
from augury.tools.doctor.found.find import find_commands
from augury.tools.doctor.report import sarif
from augury.tools.doctor.screen import show

GONE = """vllm serve m -sc '{"method": "mtp", "num_speculative_tokens": 1, "disable_by_batch_size": 8}'"""
WARNED = """vllm serve m -sc '{"method": "deepseek_mtp", "num_speculative_tokens": 1}'"""
CLEAN = """vllm serve m -sc '{"method": "mtp", "num_speculative_tokens": 1}'"""


def doctor(*words: str, stdin: str | bytes | None = None) -> Any:
    return CliRunner().invoke(app, ["doctor", *words], input=stdin, prog_name="augury")


# --- looks ---------------------------------------------------------------------------------------------------------


def test_a_finding_looks_like_a_compilers() -> None:
    result = doctor(GONE)
    lines = result.stdout.splitlines()
    assert lines[0] == "command:1:66: error[key-gone]: disable_by_batch_size was removed in vLLM 0.17"
    assert lines[1] == f" 1 | {GONE}"
    assert lines[2] == "   | " + " " * 65 + "^" * len('"disable_by_batch_size": 8')
    assert lines[3].startswith("  why: ") and lines[4].startswith("  fix: ")
    assert lines[-1].startswith("1 error in 1 command · checked against vLLM 0.32, the newest known")
    assert "1 can be fixed: --fix" in lines[-1] and "1 thing not checked" in lines[-1]
    assert lines[-2].startswith("  not checked: the target: its MTP layers") and "--target DIR" in lines[-2]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_terminal_is_never_overrun(width: int) -> None:
    screen = io.StringIO()
    console = Console(width=width, force_terminal=True, color_system=None, highlight=False, file=screen)
    show([examine(GONE.replace(" m ", " " + "m" * 200 + " "))], True, console)
    lines = screen.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert any("^^^" in line for line in lines)
    source, carets = next((a, b) for a, b in pairwise(lines) if "^" in b)
    assert "disable_by_batch_size" in source[carets.index("^") : carets.rindex("^") + 1]


def test_what_is_printed_cannot_steer_the_terminal() -> None:
    result = doctor('vllm serve m -sc \'{"method": "\\u001b[31mx", "num_speculative_tokens": 1}\' \x1b[2J')
    assert "\x1b" not in result.stdout


def test_any_locale_and_any_bytes_in_an_argument() -> None:
    code = "from augury.cli import main; main()"
    command = WARNED.encode().replace(b" m ", b" \xff\xc3\xa9 ")
    for extra in ([], ["--fix"], ["--json"]):
        done = subprocess.run(
            [sys.executable.encode(), b"-c", code.encode(), b"doctor", command, *(word.encode() for word in extra)],
            capture_output=True,
            env={**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        )
        assert done.returncode == 0 and b"Traceback" not in done.stderr, done
        assert b" \xff\xc3\xa9 " in done.stdout or "--fix" not in extra


# --- exit codes and formats ----------------------------------------------------------------------------------------


def test_exit_codes(tmp_path: Path) -> None:
    assert doctor(CLEAN).exit_code == 0 and "nothing found in 1 command" in doctor(CLEAN).stdout
    assert doctor(GONE).exit_code == 1
    assert doctor(WARNED).exit_code == 0 and doctor(WARNED, "--strict").exit_code == 1
    for words in (
        ["no-such-file"],
        ["echo hello world"],
        [str(tmp_path)],
        [GONE, "--vllm-version", "new"],
        [GONE, "--vllm-version", "0.5"],
        [GONE, "--target", str(tmp_path)],
        [GONE, "--write"],
        [GONE, "--fix", "--write"],
    ):
        result = doctor(*words)
        assert result.exit_code == 2 and result.stderr.startswith("error: "), words
        assert result.stderr.count("\n") == 1


def test_standard_input_and_bytes(tmp_path: Path) -> None:
    assert doctor("-", stdin=GONE).exit_code == 1
    assert doctor("-", stdin=b"\xff\xfe\x00").exit_code == 2
    (tmp_path / "x.sh").write_bytes(b"\x80abc")
    assert doctor(str(tmp_path / "x.sh")).exit_code == 2


def test_json_holds_everything(tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    file.write_text("# start\n" + GONE + "\n")
    answer = json.loads(doctor(str(file), "--json").stdout)
    [one] = answer["files"]
    [finding] = one["findings"]
    assert answer["exit_code"] == 1 and answer["summary"] == {"error": 1, "warning": 0, "note": 0, "unchecked": 1}
    assert (finding["startLine"], finding["startColumn"], finding["fixable"]) == (2, 66, True)
    assert finding["text"] == '"disable_by_batch_size": 8' and one["commands"][0]["line"] == 2
    fixed = json.loads(doctor(str(file), "--json", "--fix").stdout)
    assert (
        fixed["exit_code"] == 0
        and "per_batch_size" in fixed["files"][0]["fixed"]
        and "+vllm" in fixed["files"][0]["diff"]
    )


def test_fix_prints_the_command_or_a_diff_or_writes(tmp_path: Path) -> None:
    printed = doctor(WARNED, "--fix")
    assert printed.stdout == CLEAN + "\n" and "nothing found" in printed.stderr
    file = tmp_path / "run.sh"
    file.write_bytes(b"#!/bin/sh\r\n" + WARNED.encode() + b"\r\n")
    diff = doctor(str(file), "--fix").stdout
    assert diff.startswith(f"--- a/{file}") and b"deepseek_mtp" in file.read_bytes()
    assert doctor(str(file), "--fix", "--write").exit_code == 0
    assert file.read_bytes() == b"#!/bin/sh\r\n" + CLEAN.encode() + b"\r\n"


def test_directories_are_searched(tmp_path: Path) -> None:
    (tmp_path / "deploy").mkdir()
    (tmp_path / ".git").mkdir()
    (tmp_path / "deploy" / "a.sh").write_text(GONE)
    (tmp_path / "deploy" / "notes.md").write_text("nothing here")
    (tmp_path / "deploy" / "start").write_text("#!/bin/sh\n" + CLEAN)
    (tmp_path / "deploy" / "code.py").write_text(f"run({GONE!r})")
    (tmp_path / "deploy" / "blob").write_bytes(b"\xff\x00vllm serve")
    (tmp_path / ".git" / "b.sh").write_text(GONE)
    (tmp_path / "deploy" / "helm.yaml").write_text("args: [vllm serve {{ .model }}\n  {{ end }}")
    result = doctor(str(tmp_path), "--json")
    answer = json.loads(result.stdout)
    assert "not read" in result.stderr and "Helm" in result.stderr
    assert json.loads(doctor(str(tmp_path / "deploy" / "helm.yaml"), "--json").stdout)["exit_code"] == 2
    assert [Path(one["name"]).name for one in answer["files"]] == ["a.sh", "start"]


def test_sarif_has_the_published_shape(tmp_path: Path) -> None:
    """The properties that SARIF 2.1.0 requires, and that code hosts read."""
    source, log = tmp_path / "my run.sh", tmp_path / "out.sarif"
    source.write_text(GONE + "\n" + WARNED + "\n")
    doctor(str(source), "--sarif", str(log))
    written = json.loads(log.read_text())
    assert written["version"] == "2.1.0" and written["$schema"].endswith("sarif-2.1.0.json")
    [run] = written["runs"]
    assert set(run) == {"tool", "columnKind", "invocations", "results"} and run["columnKind"] == "unicodeCodePoints"
    rules = run["tool"]["driver"]["rules"]
    assert run["tool"]["driver"]["name"] and len({rule["id"] for rule in rules}) == len(rules) == 2
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"] and result["level"] in ("error", "warning", "note")
        assert result["message"]["text"]
        [location] = result["locations"]
        place = location["physicalLocation"]
        assert " " not in place["artifactLocation"]["uri"] and place["artifactLocation"]["uri"].startswith("file:///")
        _check_region(place["region"])
        for fix in result["fixes"]:
            [change] = fix["artifactChanges"]
            for replacement in change["replacements"]:
                assert set(replacement) == {"deletedRegion", "insertedContent"}
                _check_region(replacement["deletedRegion"])


def _check_region(region: dict[str, int]) -> None:
    assert set(region) == {"startLine", "startColumn", "endLine", "endColumn"} and min(region.values()) >= 1
    assert (region["endLine"], region["endColumn"]) >= (region["startLine"], region["startColumn"])


# --- speed ---------------------------------------------------------------------------------------------------------


def test_it_answers_in_a_second_and_loads_no_engine() -> None:
    heavy = ("torch", "transformers", "numba", "numpy")
    code = (
        f"import atexit, sys; atexit.register(lambda: print([m for m in {heavy} if m in sys.modules])); "
        "from augury.cli import main; main()"
    )
    times, bare = [], []
    for _ in range(3):
        bare.append(_seconds("import pydantic, rich.console, typer, yaml")[0])
        spent, done = _seconds(code, "doctor", GONE)
        assert done.returncode == 1 and done.stdout.strip().endswith("[]"), done
        times.append(spent)
    # A second where nobody else works; a slower or busier machine is known by what the libraries take there.
    assert min(times) < max(1.0, 3 * min(bare))


def _seconds(code: str, *arguments: str) -> tuple[float, subprocess.CompletedProcess[str]]:
    """Processor time of a child, and the child."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done


# --- any input -----------------------------------------------------------------------------------------------------

PIECES = [
    "vllm serve m ", "-sc ", "--speculative-config ", "'", '"', "{", "}", '{"method": "ngram", ', '"k": 3}', "\\",
    "\n", " ", "$X", "“", "[", "]", ",", ":", "FROM vllm/vllm-openai:v0.9\n", "CMD ", "services:\n", "  a:\n",
    "    command: ", "- ", "|\n", ">\n", "&a ", "*a", "[Service]\nExecStart=", "--spec-tokens=", "#", "-sc.method ",
    "null", "1e999", "é", "\x00", "```\n", '"num_speculative_tokens": 3}', "--async-scheduling ", "X=",
]  # fmt: skip
NAMES = ["", "a.sh", "Dockerfile", "a.yaml", "a.json", "a.service", "a.md"]


@settings(max_examples=400, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(st.one_of(st.text(), st.lists(st.sampled_from(PIECES)).map("".join)), st.sampled_from(NAMES))
def test_no_text_makes_it_stumble(text: str, name: str) -> None:
    try:
        found = examine(text, name)
    except ConfigError:
        return
    for finding in found.findings:
        assert 0 <= finding.start <= finding.end <= len(text)
        assert "{" not in finding.id and finding.message
    after = mended(found, CheckedAgainst())
    assert len(after.commands) == len(found.commands)


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 40),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=5),
    st.sampled_from(["fp8", "standard", "strict", "block", "probabilistic", "org/eagle3", "ngram", *METHODS]),
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(-1, 5)).map(list), max_size=2),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)
BASE = st.fixed_dictionaries(
    {"num_speculative_tokens": st.integers(1, 8)},
    optional={
        "method": st.sampled_from([*METHODS, *list(ALIASES)[:3], "eagel", "[ngram]"]),
        "model": st.sampled_from(["org/eagle3", "org/small", "ngram"]),
    },
)
OTHER = st.dictionaries(st.sampled_from([*KEYS, "k", "tensor_parallel_size"]), VALUES, max_size=4)
CONFIGS = st.tuples(OTHER, BASE).map(lambda pair: {**pair[0], **pair[1]})
RELEASES = st.sampled_from(["0.8.2", "0.9.1", "0.12", "0.16", "0.19", "0.20", "0.21", "0.24", "0.28", "0.32", None])
FLAGS = st.lists(
    st.sampled_from(["--async-scheduling", "-tp 2", "--enable-lora", "--enable-dbo", "--max-num-seqs 4", "-q ascend"])
)


def shells(text: str, flags: list[str]) -> dict[str, str]:
    """One configuration in several places."""
    rest = " ".join(flags)
    quoted = text.replace("'", "'\\''")
    inner = json.dumps(text)
    return {
        "a.sh": f"vllm serve m {rest} --speculative-config '{quoted}'\n",
        "Dockerfile": f'FROM vllm/vllm-openai\nCMD ["m", "--speculative-config", {inner}]\n',
        "a.yaml": "services:\n  a:\n    image: vllm/vllm-openai\n    command:\n    - --speculative-config\n"
        f"    - {inner}\n",
        "a.json": text,
    }


@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(CONFIGS, FLAGS, RELEASES)
def test_what_can_be_mended_is_mended_and_stays_so(
    config: dict[str, Any], flags: list[str], release: str | None
) -> None:
    for name, text in shells(json.dumps(config), flags).items():
        asked = CheckedAgainst(release)
        before = examine(text, name, asked)
        after = mended(before, asked)
        left = [finding for finding in after.findings if finding.edits]
        assert not left, (name, after.text, left)
        assert mended(after, asked).text == after.text
        assert len(after.commands) == len(before.commands) == 1


@settings(max_examples=100, deadline=None, derandomize=True)
@given(CONFIGS, RELEASES)
def test_places_are_the_same_whatever_is_around(config: dict[str, Any], release: str | None) -> None:
    """The same object in a script, a Dockerfile, YAML and JSON gives the same findings on the same keys."""
    seen = []
    for name, text in shells(json.dumps(config), []).items():
        found = examine(text, name, CheckedAgainst(release))
        spans = [
            (f.id, re.sub(r"[\\\"']", "", text[f.start : f.end])) for f in found.findings if f.id != "flag-too-new"
        ]
        seen.append(sorted(span for span in spans if ":" in span[1]))
    assert all(spans == seen[0] for spans in seen), seen


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.binary(max_size=60), st.sampled_from(NAMES[1:]))
def test_any_bytes_in_a_file_end_in_a_line_or_an_answer(
    tmp_path_factory: pytest.TempPathFactory, raw: bytes, name: str
) -> None:
    file = tmp_path_factory.mktemp("bytes") / name
    file.write_bytes(raw)
    result = doctor(str(file), "--fix")
    assert result.exit_code in (0, 1, 2) and not isinstance(
        result.exception, (ValueError, TypeError, KeyError, IndexError)
    )


def test_sarif_of_every_sort_of_finding_is_json() -> None:
    assert json.dumps(sarif([examine(GONE), examine(WARNED)]), allow_nan=False)
    assert find_commands("") == []


# --- found by a tester -----------------------------------------------------------------------------------------------


def test_an_empty_variable_is_not_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "x.sh"
    script.write_text("vllm serve m --speculative-confg '{}'\n")
    monkeypatch.chdir(tmp_path)
    before = script.read_text()
    done = CliRunner().invoke(app, ["doctor", "", "--fix", "--write"])
    assert done.exit_code == 2 and script.read_text() == before


WITHOUT = '{"method": "ngram", "num_speculative_tokens": 2, "disable_by_batch_size": 4}'


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("Makefile", f"MODEL := m\nserve:\n\tvllm serve $(MODEL) --speculative-config '{WITHOUT}'\n"),
        ("run.mk", f"serve:\n\tvllm serve m -sc '{WITHOUT}'\n"),
        ("values.yaml", f"image: x\nextraArgs:\n  - --speculative-config\n  - '{WITHOUT}'\n"),
        (
            "map.yaml",
            "kind: ConfigMap\ndata:\n  config.yaml: |\n    model: m\n    speculative_config:\n"
            "      method: ngram\n      num_speculative_tokens: 2\n      disable_by_batch_size: 4\n",
        ),
        ("spec.json", WITHOUT),
    ],
)
def test_more_places_where_commands_stand(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    for what in (tmp_path / name, tmp_path):
        done = CliRunner().invoke(app, ["doctor", str(what), "--json"])
        found = json.loads(done.stdout)["files"][0]["findings"]
        assert [one["id"] for one in found if one["severity"] == "error"] == ["key-gone"]


def test_a_flag_too_new_is_told_beside_a_variable() -> None:
    done = CliRunner().invoke(app, ["doctor", 'vllm serve m -sc "$SPEC"', "--vllm-version", "0.15", "--json"])
    found = json.loads(done.stdout)["files"][0]["findings"]
    assert {"flag-too-new", "json-has-variable"} <= {finding["id"] for finding in found}
