"""`augury certify --suite` on the command line: its lines, table and page, and servers that it starts itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import promising
import pytest
from certifying import augury
from promising import Promising, serving

from augury.tools.certify.suite.cells import GREEN, RED, Cell, Subject
from augury.tools.certify.suite.page import suite_page

AMOUNTS = ("--max-tokens", "12", "--batch", "2", "--long-words", "300")


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def test_lines_table_and_page(tmp_path: Path) -> None:
    lines, html = tmp_path / "cells.jsonl", tmp_path / "table.html"
    with serving(Promising("replay")) as url, serving(Promising()) as baseline:
        where = ("--suite", "--url", url, "--baseline-url", baseline, *AMOUNTS, "--lines", str(lines))
        red = augury(*where, "--method", "mtp", "--only", "greedy,replay", "--html", str(html))
    assert red.exit_code == 1 and "DOES NOT HOLD · 1 green, 1 red" in red.stdout
    assert "doctor rule hybrid-prefix-cache-text" in red.stdout
    cells = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [(cell["suite"], cell["verdict"]) for cell in cells] == [("greedy", GREEN), ("replay", RED)]
    assert cells[1]["evidence"]["expected"] != cells[1]["evidence"]["got"]
    page = html.read_text()
    assert 'href="#c1"' in page and 'id="c1"' in page and "<script" not in page and "Conditions" in page
    with serving(Promising()) as url:
        one = augury("--suite", "--url", url, *AMOUNTS, "--lines", str(lines), "--only", "json", "--json")
    assert one.exit_code == 0 and json.loads(one.stdout)["cells"][0]["suite"] == "json"
    table = augury("--table", str(lines), "--html", str(html))
    assert table.exit_code == 1 and "1  vLLM 0.28.0 · toy · mtp" in table.stdout
    assert "2  vLLM 0.28.0 · toy · unknown" in table.stdout and "2 green, 1 red, 0 grey" in table.stdout


def test_of_two_lines_for_a_cell_the_later_counts(tmp_path: Path) -> None:
    lines = tmp_path / "cells.jsonl"
    told = {"server": "s", "release": "1", "model": "m", "method": "x", "suite": "n", "verdict": RED, "reason": "r"}
    later = {**told, "verdict": GREEN, "when": "2026-11-18"}
    lines.write_text(json.dumps(later) + "\n\n" + json.dumps({**told, "when": "2026-11-17"}) + "\n")
    assert augury("--table", str(lines)).exit_code == 0


def test_names_from_a_file_steer_nothing(tmp_path: Path) -> None:
    subject = Subject("<b>s\x1b[31m", "1", "m", "x")
    cell = Cell(subject, "<i>", RED, "<script>alert(1)</script>", evidence={"got": "</pre><script>"})
    assert "<script" not in suite_page([cell]) and "<b>s" not in suite_page([cell])
    lines = tmp_path / "cells.jsonl"
    lines.write_text(json.dumps(cell.record()))
    assert "\x1b" not in augury("--table", str(lines)).stdout


def test_one_command_starts_the_servers_of_a_file(tmp_path: Path) -> None:
    file, lines = tmp_path / "servers.yml", tmp_path / "cells.jsonl"
    run = f"{sys.executable} {promising.__file__} {{port}}"
    entries = [
        {"speculative": f"{run} json", "plain": run, "method": "eagle3"},
        {"speculative": run, "plain": run, "server": "mine", "release": "7", "method": "suffix"},
    ]
    file.write_text(json.dumps(entries))  # JSON is YAML
    found = augury("--suite", "--servers", str(file), "--only", "json,n", *AMOUNTS, "--lines", str(lines))
    assert found.exit_code == 1, found.output
    cells = [json.loads(line) for line in lines.read_text().splitlines()]
    told = [(cell["server"], cell["method"], cell["suite"], cell["verdict"]) for cell in cells]
    assert told == [
        ("vLLM", "eagle3", "json", RED),
        ("vLLM", "eagle3", "n", GREEN),
        ("mine", "suffix", "json", GREEN),
        ("mine", "suffix", "n", GREEN),
    ]


def test_a_run_that_is_told_to_end_leaves_no_server_behind(tmp_path: Path) -> None:
    file = tmp_path / "servers.yml"
    file.write_text(json.dumps([{"speculative": f"{sys.executable} {promising.__file__} {{port}} hangs"}]))
    code = "from augury.cli import main; main()"
    words = [sys.executable, "-c", code, "certify", "--suite", "--servers", str(file), "--only", "n"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as run:
        children = Path(f"/proc/{run.pid}/task/{run.pid}/children")
        while not (there := children.read_text().split()) or not asked_of(int(there[0])):
            assert run.poll() is None, run.stdout and run.stdout.read()
        run.terminate()
        assert run.wait(60) == 128 + signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(int(there[0]), 0)


def asked_of(pid: int) -> bool:
    """Whether a request hangs at the server, which then has a thread for it."""
    return len(list(Path(f"/proc/{pid}/task").iterdir())) > 1


def test_what_cannot_be_run_is_said_in_a_line(tmp_path: Path) -> None:
    file = tmp_path / "servers.yml"
    wrong = {
        "[]": "write a list",
        "- plain: x": "speculative: Field required",
        "- speculative: no-such-program {port}": "No such file",
        f"- speculative: '{sys.executable} -c 3/0'": "ended with 1: ZeroDivisionError",
        "- {": "servers.yml",
    }
    for text, words in wrong.items():
        file.write_text(text)
        found = augury("--suite", "--servers", str(file))
        assert found.exit_code == 2 and words in found.output, (text, found.output)
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"server": "s"}')
    for words, said in (
        (("--suite",), "--url A"),
        (("--suite", "--url", "http://127.0.0.1:9", "--only", "nothing"), "the suites are greedy, replay"),
        (("--servers", str(file)), "goes with --suite"),
        (("--table", str(bad)), "line 1: no cell of a suite"),
        (("--table", str(tmp_path / "none")), "No such file"),
        (("--suite", "--exact", "--url", "http://127.0.0.1:9"), "one of the three"),
    ):
        found = augury(*words)
        assert found.exit_code == 2 and said in found.output, (words, found.output)
