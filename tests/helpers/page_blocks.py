"""The blocks of README and docs that a reader would run, and what is said of each in followed.yml."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
PLAN = Path(__file__).with_name("followed.yml")
GENERATED = ("cli.md", "api.md", "config.md", "knowledge.md", "LOG.md")  # from the code, or a diary
PROGRAMS = r"(?:\$ )?(?:[A-Z_]+=\S+ )?(?:augury|python|python3|pip|make|source|curl|vllm|docker|cp|promtool)\b"
FENCE = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```$", re.M | re.S)
INDENTED = re.compile(r"(?:^    [^\n]*\n(?:[ \t]*\n(?=    ))?)+", re.M)


@dataclass(frozen=True)
class Block:
    """A piece of a page that can be run."""

    page: str
    language: str
    text: str

    @property
    def begins(self) -> str:
        """Its first line that does something: its name in the plan."""
        lines = [line.strip() for line in self.text.splitlines() if line.strip()]
        commands = [line for line in lines if re.match(PROGRAMS, line)]
        return re.split(r"\s\s+#", (commands or lines)[0])[0].removeprefix("$ ")

    @property
    def commands(self) -> list[str]:
        """The commands of a shell's block; where some begin with a dollar, the rest is what they print."""
        lines = [line.rstrip() for line in self.text.splitlines() if line.strip()]
        prompted = [line[2:] for line in lines if line.startswith("$ ")]
        return prompted or [line for line in lines if not line.lstrip().startswith("#")]


@dataclass(frozen=True)
class Followed:
    """A block with what the plan says of it."""

    block: Block
    run: str = ""  # "test": by the tests; "ci": by follow_pages.py alone, which takes minutes; empty: not run
    reason: str = ""  # why it is not run
    only: int | None = None  # the first so many commands are run, and `rest` says why not the others
    rest: str = ""
    files: list[str] = field(default_factory=list)  # of followed.yml, that stand in for the reader's own
    shows: list[str] = field(default_factory=list)  # patterns that its output has
    accepts: float | None = None  # the least share of drafted tokens that is accepted
    code: int = 0  # of the last command


def pages() -> list[Path]:
    """README, CONTRIBUTING and the docs that are written by hand."""
    docs = [page for page in sorted((ROOT / "docs").glob("*.md")) if page.name not in GENERATED]
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *docs]


def blocks(page: Path) -> Iterator[Block]:
    """Every fenced block that names its language, and every indented one with a command in it."""
    text, name = page.read_text(), str(page.relative_to(ROOT))
    for found in FENCE.finditer(text):
        yield Block(name, found[1], found[2])
    for found in INDENTED.finditer(re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)):
        body = re.sub(r"^    ", "", found[0], flags=re.M)
        if re.search(rf"^{PROGRAMS} ", body, flags=re.M):
            yield Block(name, "console", body)


def plan() -> dict[str, Any]:
    """followed.yml."""
    written: dict[str, Any] = yaml.safe_load(PLAN.read_text())
    for page, entries in written["pages"].items():
        written["pages"][page] = {entry.pop("begins"): entry for entry in entries}
    return written


def followed() -> list[Followed]:
    """Every block with its entry; a block without one is not followed, with no reason."""
    entries = plan()["pages"]
    found = []
    for page in pages():
        for block in blocks(page):
            entry = dict(entries.get(block.page, {}).get(block.begins) or {})
            found.append(Followed(block, entry.pop("run", ""), entry.pop("not run", ""), **entry))
    return found
