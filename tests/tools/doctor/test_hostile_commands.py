"""Files that try to exhaust the doctor: bounded time and memory, one clear error."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from bounded_run import SPEC, bounded, one_error, run

from augury.config.errors import ConfigError
from augury.tools.doctor.examine import CheckedAgainst, Examination, examine
from augury.tools.doctor.fix import MOST_WORK, mended
from augury.tools.doctor.found import allowance as allowances
from augury.tools.doctor.found.allowance import MOST, MOST_COMMANDS
from augury.tools.doctor.found.find import find_commands


def doubling(count: int, line: str) -> str:
    return "A1=xxxxxxxxxx\n" + "".join(line.format(i, i + 1) for i in range(1, count)) + f"vllm serve $A{count}\n"


BOMBS: dict[str, tuple[str, str]] = {
    "variables": ("x.sh", doubling(60, "A{1}=$A{0}$A{0}\n")),
    "quoted variables": ("x.sh", doubling(60, 'A{1}="${{A{0}}}${{A{0}}}"\n')),
    "a shell in each line": ("x.sh", f"bash -c '{doubling(30, 'A{1}=$A{0}$A{0};').replace(chr(10), ';')}'\n" * 40),
    "arrays": ("x.sh", "A=(" + "x " * 5000 + ")\n" + 'vllm "${A[@]}"\n' * 5000),
    "many variables": ("x.sh", "".join(f"V{i}=x\n" for i in range(20_000)) + SPEC),
    "aliases": (
        "x.yaml",
        "a0: &a0 [x,x]\n"
        + "".join(f"a{i + 1}: &a{i + 1} [*a{i},*a{i}]\n" for i in range(50))
        + "speculative_config: {a: *a50}\n",
    ),
    "names": (
        "x.py",
        "from vllm import LLM\na0={'a':1}\n"
        + "".join(f"a{i + 1}={{'a':a{i},'b':a{i}}}\n" for i in range(50))
        + "LLM('m', speculative_config=a50)\n",
    ),
}


@pytest.mark.parametrize(("name", "text"), BOMBS.values(), ids=BOMBS)
def test_what_grows_is_bounded(name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Letters added are counted, and the reading ends in one error at the limit."""
    spent: list[int] = []
    left = allowances._left

    def take(value: int) -> Any:
        if (before := left.get()) is not None:
            spent.append(before - value)
        return left.set(value)

    monkeypatch.setattr(allowances, "_left", SimpleNamespace(get=left.get, set=take, reset=left.reset))
    with pytest.raises(ConfigError, match="variables of this text add more than 2,000,000 letters"):
        find_commands(text, name)
    assert sum(spent[:-1]) <= MOST and len(spent) <= MOST


def test_ordinary_variables_are_filled_in() -> None:
    """The limit is far from what people write: a hundred variables, used by two hundred commands."""
    text = "".join(f"V{i}={'x' * 20}\n" for i in range(100)) + "".join(f"vllm serve $V{i % 100}\n" for i in range(200))
    found = find_commands(text, "x.sh")
    assert [one.words[0].text for one in found] == ["x" * 20] * 200 and len(found[0].environment) == 100


def test_an_environment_is_that_of_its_place() -> None:
    """Commands share the variables around them as long as none is set between them."""
    text = "export A=1\nvllm serve m\nvllm serve m\nexport A=2 B=3\nvllm serve m\nC=4 vllm serve m\nvllm serve m\n"
    values = [{name: one.value for name, one in found.environment.items()} for found in find_commands(text, "x.sh")]
    late = {"A": "2", "B": "3"}
    assert values == [{"A": "1"}, {"A": "1"}, late, {**late, "C": "4"}, late]


def test_twenty_thousand_commands() -> None:
    with pytest.raises(ConfigError, match=r"x.sh holds 20,000 commands; 2,000 are examined at once, split it"):
        find_commands(SPEC * 20_000, "x.sh")
    assert len(find_commands(SPEC * MOST_COMMANDS, "x.sh")) == MOST_COMMANDS


def test_the_work_of_a_file_grows_with_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice the commands are twice the calls, placing each finding included."""

    def calls(count: int) -> int:
        made = 0

        def note(frame: Any, event: str, argument: Any) -> None:
            nonlocal made
            made += event in ("call", "c_call")

        sys.setprofile(note)
        try:
            result = examine("A=b\n" + SPEC * count, "x.sh")
            places = [result.place(finding.start) for finding in result.findings]
        finally:
            sys.setprofile(None)
        assert places == sorted(places) and {line for line, _ in places} == set(range(2, count + 2))
        return made

    calls(5)  # knowledge is read once
    few, many = calls(20), calls(80)
    assert many < 4.4 * few


def test_mending_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts are counted in commands examined, so that a large file gets fewer of them."""
    examined: list[int] = []

    def counted(text: str, name: str, asked: Any) -> Examination:
        examined.append(text.count("vllm serve"))
        return examine(text, name, asked)

    monkeypatch.setattr("augury.tools.doctor.fix.examine", counted)
    monkeypatch.setattr("augury.tools.doctor.fix.MOST_WORK", 300)
    before = examine(SPEC * 60, "x.sh")
    after = mended(before, CheckedAgainst())
    assert sum(examined) <= 300 + 2 * 60 and MOST_WORK > 300
    assert len(after.findings) < len(before.findings) and after.text != before.text


@pytest.mark.parametrize(("line", "column", "offset"), [(1, 1, 0), (1, 4, 3), (2, 1, 4), (3, 1, 5), (3, 3, 7)])
def test_places(line: int, column: int, offset: int) -> None:
    assert Examination("", "abc\n\nde", []).place(offset) == (line, column)


WIDE = 200_000
LONG_LINES: dict[str, tuple[str, str]] = {
    "dashes": ("x", "vllm " + "-" * WIDE),
    "unclosed defaults": ("x.sh", "vllm serve m\n" + "${a-" * (WIDE // 4)),
    "shells": ("x.sh", "vllm serve m\n" + "sh " * (WIDE // 3)),
    "an image": ("Dockerfile", f"FROM {'vllm' * (WIDE // 4)}\nCMD x\n"),
    "appended arrays": ("x.sh", "vllm serve m\n" + "A+=(x)\n" * (WIDE // 7)),
    "flags": ("x.sh", "vllm serve m " + " ".join(f"--f{i}" for i in range(WIDE // 8))),
    "yaml": ("x.yaml", "command: vllm serve m\nother:\n" + "- a: b\n" * (WIDE // 7)),
    "keywords": ("x.py", "from vllm import LLM\nLLM('é'," + ",".join(f"k{i}='é'" for i in range(WIDE // 10)) + ")\n"),
}


@pytest.mark.slow
def test_long_lines_take_bounded_time_and_memory(tmp_path: Path) -> None:
    """Each once took time by the square of its length; together they have two minutes of processor time."""
    files = [tmp_path / f"{i}" / name for i, (name, _) in enumerate(LONG_LINES.values())]
    for file, (_, text) in zip(files, LONG_LINES.values(), strict=True):
        file.parent.mkdir()
        file.write_text(text)
    code = "import sys\nfrom augury.cli import app\nfrom typer.testing import CliRunner\nfor name in sys.argv[1:]:\n"
    code += "    done = CliRunner().invoke(app, ['doctor', name])\n    print(done.exit_code, repr(done.exception))\n"

    def limits() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (120, 120))
        resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))

    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, files)], capture_output=True, text=True, preexec_fn=limits, timeout=600
    )
    assert done.returncode == 0, done.stderr[-500:]
    lines = done.stdout.splitlines()
    assert len(lines) == len(files) and all("SystemExit" in line or "None" in line for line in lines), lines


# - what is no file ----------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no endless device here")
def test_a_link_to_an_endless_device(tmp_path: Path) -> None:
    link, folder = tmp_path / "deploy.sh", tmp_path / "deploy"
    link.symlink_to("/dev/zero")
    one_error(bounded("doctor", str(link)), "more than 2,000,000 bytes")
    folder.mkdir()
    (folder / "run.sh").symlink_to("/dev/zero")
    os.mkfifo(folder / "pipe.sh")  # nobody writes to it
    (folder / "good.sh").write_text(SPEC)
    done = bounded("doctor", str(folder))
    assert done.returncode == 1 and b"good.sh:1:" in done.stdout
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").symlink_to("/dev/zero")
    one_error(bounded("doctor", SPEC, "--target", str(model)), "config.json", "not a regular file")
    one_error(bounded("suffix", "show", str(link)), "not a suffix cache")


def test_standard_input_is_bounded() -> None:
    code, said = run("doctor", "-", stdin=b"vllm serve m\n" + b"#" * 2_000_000)
    assert code == 2 and "standard input has more than 2,000,000 bytes" in said


def test_the_allowance_is_of_one_text() -> None:
    with allowances.one_text():
        allowances.spend(MOST - 10)
        with allowances.one_text():
            allowances.spend(MOST)  # its own
        allowances.spend(10)
        with pytest.raises(ConfigError, match="letters"):
            allowances.spend(1)
