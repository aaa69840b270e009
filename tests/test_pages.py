"""The pages of the docs: what is generated is the code's, and every link leads somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

import augury
from augury import LLM
from augury.cli import app
from augury.config.errors import ConfigError
from augury.tools.config.check import ConfigQuestion, judge
from augury.tools.config.reference_api import api_page
from augury.tools.config.reference_methods import methods_table

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("*.md"), reverse=True), *sorted((ROOT / "docs").glob("*.md"))]  # the README first
LINK = re.compile(r"\]\(([^()\s]+)\)")


def printed(*words: str) -> str:
    """What a command prints."""
    result = CliRunner().invoke(app, list(words), prog_name="augury")
    assert result.exit_code == 0, result.output
    return result.stdout


def unfenced(page: Path) -> str:
    """A page without its blocks of code, in which brackets are no links and hashes no headings."""
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)


def anchors(page: Path) -> set[str]:
    """Its headings as links name them."""
    headings = re.findall(r"^#+ (.+)$", unfenced(page), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(page: Path) -> Iterator[tuple[Path, str]]:
    """The file and the heading that each relative link of a page means."""
    for target in LINK.findall(unfenced(page)):
        if not re.match(r"[a-z]+:", target):
            file, _, heading = target.partition("#")
            yield (page.parent / file if file else page), heading


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    wrong = [
        f"{file}#{heading}"
        for file, heading in links(page)
        if not file.exists() or (heading and heading not in anchors(file))
    ]
    assert not wrong, wrong


def test_links_are_found() -> None:
    """The check above would pass on pages in which it saw nothing."""
    seen = {file.resolve() for page in PAGES for file, _ in links(page)}
    assert (ROOT / "docs" / "serve.md") in seen and (ROOT / "src/augury/engine/engine.py") in seen


def test_every_page_is_linked_from_the_readme() -> None:
    linked = {file.resolve() for file, _ in links(PAGES[0])}
    assert [page.name for page in PAGES[1:] if page not in linked] == []


def test_the_readmes_reading_list_is_what_it_says() -> None:
    """The files exist, and are about 2,800 lines."""
    readme = (ROOT / "README.md").read_text()
    named = re.findall(r"`((?:src|tests)/[^`]+\.py)`", readme.partition("Read in this order")[2].partition("\n\n")[0])
    files = []
    for name in named:
        stem, _, rest = name.partition("{")
        inside, _, suffix = rest.partition("}")
        files += [ROOT / f"{stem}{part}{suffix}" for part in inside.split(",")]
    assert len(files) > 15
    assert 2_750 < sum(len(file.read_text().splitlines()) for file in files) < 2_850


def test_files_that_contributing_names_exist() -> None:
    """Those without a placeholder; test_methods_in_one_place.py fills in a method's name."""
    named = re.findall(r"`((?:src|tests|docs)/[\w/.-]+\.\w+)`", (ROOT / "CONTRIBUTING.md").read_text())
    assert len(named) > 15
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_cli_page() -> None:
    written = (ROOT / "docs" / "cli.md").read_text()
    assert written == printed("reference", "cli"), "run `augury reference cli > docs/cli.md`"


def test_api_page() -> None:
    written = (ROOT / "docs" / "api.md").read_text()
    assert written == api_page() + "\n", "run `python -m augury.tools.config.reference_api > docs/api.md`"
    assert all(f"## {name}\n" in written for name in augury.__all__ if not name.startswith("__"))


def test_cli_page_has_every_command_and_option() -> None:
    """Counted another way: by asking each command for its help."""
    page = (ROOT / "docs" / "cli.md").read_text()
    sections = dict(part.split("\n", 1) for part in re.split(r"^#+ ", page, flags=re.M)[1:])
    for words in (["generate"], ["serve"], ["bench"], ["bench", "serve"], ["suffix", "build"], ["config", "check"]):
        flags = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", printed(*words, "--help"))) - {"--help"}
        assert flags and all(flag in sections[f"augury {' '.join(words)}"] for flag in flags), words
    names = {command.name for command in app.registered_commands if not command.hidden and command.name}
    assert names and all(f"augury {name}" in sections for name in names)
    assert "reference" not in "".join(sections)


def test_cli_page_loads_no_engine() -> None:
    code = "import sys; from augury.cli import main; sys.argv[1:] = ['reference', 'cli']\n"
    code += "try: main()\nexcept SystemExit: pass\nsys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=False).returncode == 0


def test_cli_page_does_not_depend_on_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    before = printed("reference", "cli")
    for columns in ("40", "300"):
        monkeypatch.setenv("COLUMNS", columns)
        assert printed("reference", "cli") == before


def test_methods_table() -> None:
    page = (ROOT / "docs" / "methods.md").read_text()
    assert methods_table() in page, "put what `augury reference methods` prints into docs/methods.md"


@pytest.mark.parametrize("page", ["README.md", "docs/methods.md"])
def test_figures_are_those_of_one_file(page: str) -> None:
    """A page cannot go on with an older figure than the other's: both have theirs from docs/figures.yml."""
    written = yaml.safe_load((ROOT / "docs" / "figures.yml").read_text())
    text = (ROOT / page).read_text()
    section = text.partition("## Methods")[2].partition("**The engine on a GPU**")[0] if page == "README.md" else text
    stated = re.findall(r"(?<![\w.])\d+\.\d+x\b", section)
    assert Counter(stated) == Counter(one["says"] for one in written if page in one["pages"])
    assert len({one["of"] for one in written}) == len(written) and all(one["pages"] for one in written)


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split(" | ")]


def test_the_readme_says_of_graphs_what_the_table_says() -> None:
    captured = {
        row[0].strip("` "): row[-1].strip("| ") == "yes" for row in map(cells, methods_table().splitlines()[2:])
    }
    section = (ROOT / "README.md").read_text().partition("## Methods")[2].partition("**The engine on a GPU**")[0]
    told = {
        name: row[2] == "CPU, GPU graph"
        for row in map(cells, section.splitlines())
        for name in re.findall(r"`(\w+)`", row[0])
        if name in captured
    }
    assert told == captured


@pytest.mark.parametrize("method", ["eagle", "mtp"])
def test_what_the_table_calls_not_parallel_is_refused_by_the_check_and_the_load(toy_model: Path, method: str) -> None:
    """Even where the head names a mask token: the load never gets to look at it."""
    spec = {"method": method, "model": "a/head", "num_speculative_tokens": 3, "parallel_drafting": True}
    answer = judge(ConfigQuestion(spec))
    assert answer.not_here and "method='eagle3' if the head is a P-EAGLE one" in answer.not_here
    with pytest.raises(ConfigError) as caught:
        LLM(str(toy_model), speculative_config=spec)
    assert str(caught.value) == answer.not_here
    assert "parallel_drafting" in {note.key for note in answer.config.notes if note.kind == "unused"}  # type: ignore[union-attr]
