"""A cell of the table: one suite at one server (release, model, method), green, red or grey, with its reason."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from augury.config.errors import ConfigError

GREEN, RED, GREY = "green", "red", "grey"
MEANING = {
    GREEN: "the promise was kept",
    RED: "the promise was broken",
    GREY: "not certified: the server does not offer it, or nothing could be seen",
}
LARGEST = 64 << 20  # bytes of one file of lines


class NotCertified(Exception):
    """A grey cell: the server does not offer this, or nothing could be seen."""


class Broken(Exception):
    """A red cell, with what was asked and what came."""

    def __init__(self, reason: str, **evidence: Any) -> None:
        super().__init__(reason)
        self.evidence = evidence


@dataclass(frozen=True, slots=True)
class Subject:
    """What is certified: a server of some release with a model and a method."""

    server: str
    release: str
    model: str
    method: str  # "none": it does not speculate

    def __str__(self) -> str:
        """The subject as a headline."""
        return f"{self.server} {self.release}, {self.model}, {self.method}"

    @property
    def speculates(self) -> bool:
        """Whether drafts are to be expected."""
        return self.method != "none"


@dataclass(frozen=True, slots=True)
class Cell:
    """One line of the results."""

    subject: Subject
    suite: str
    verdict: str
    reason: str
    rules: tuple[str, ...] = ()  # of the doctor, that cover a red cell
    uncertain_rules: tuple[str, ...] = ()  # that would cover it if unknown facts hold
    figures: dict[str, Any] = field(default_factory=dict)  # answers, tokens, near_ties, drafts and the like
    evidence: dict[str, Any] = field(default_factory=dict)
    conditions: dict[str, Any] = field(default_factory=dict)
    when: str = ""

    def record(self) -> dict[str, Any]:
        """For --json and a line of a file."""
        return {**asdict(self.subject), **{name: getattr(self, name) for name in SHOWN}}

    @property
    def covered(self) -> str:
        """Which rule of the doctor covers a red cell, in words."""
        if self.rules:
            return f"doctor rule {', '.join(self.rules)}"
        if self.uncertain_rules:
            return f"doctor rule {' or '.join(self.uncertain_rules)}, if its conditions hold here"
        return "no doctor rule covers it"


SHOWN = ("suite", "verdict", "reason", "rules", "uncertain_rules", "figures", "evidence", "conditions", "when")
NEEDED = ("server", "release", "model", "method", "suite", "verdict", "reason")


def exit_code(cells: Iterable[Cell]) -> int:
    """0: something was certified and nothing is red; 1: a cell is red; 2: nothing was certified."""
    verdicts = {cell.verdict for cell in cells}
    return 1 if RED in verdicts else 0 if GREEN in verdicts else 2


def append(path: Path, cells: Sequence[Cell]) -> None:
    """Add cells to a file, one JSON line each."""
    lines = [json.dumps(cell.record(), ensure_ascii=True) + "\n" for cell in cells]
    try:
        with path.open("a", encoding="utf-8") as file:
            file.writelines(lines)
    except OSError as error:
        raise ConfigError(f"--lines {path}: {error.strerror}.") from None


def read(paths: Sequence[Path]) -> list[Cell]:
    """The cells of files; of two lines for one cell the later counts."""
    found: dict[tuple[Subject, str], Cell] = {}
    for path in paths:
        try:
            with path.open("rb") as file:
                text = file.read(LARGEST).decode("utf-8", "replace")
        except OSError as error:
            raise ConfigError(f"--table {path}: {error.strerror}.") from None
        for number, line in enumerate(text.split("\n"), 1):
            if line.strip():
                cell = _cell(line, f"--table {path}, line {number}")
                before = found.get((cell.subject, cell.suite))
                if before is None or before.when <= cell.when:
                    found[cell.subject, cell.suite] = cell
    if not found:
        raise ConfigError("--table: the files hold no line; `augury certify --suite --lines FILE` writes them.")
    return list(found.values())


def _cell(line: str, where: str) -> Cell:
    try:
        told = json.loads(line)
    except (ValueError, RecursionError):
        raise ConfigError(f"{where}: not JSON.") from None
    texts = isinstance(told, dict) and all(isinstance(told.get(name), str) for name in NEEDED)
    if not texts or told["verdict"] not in MEANING:
        raise ConfigError(f"{where}: no cell of a suite; it needs {', '.join(NEEDED)}.")
    rules, unsure = (tuple(map(str, told.get(name) or ())) for name in ("rules", "uncertain_rules"))
    more = {name: told[name] for name in ("figures", "evidence", "conditions") if isinstance(told.get(name), dict)}
    subject = Subject(told["server"], told["release"], told["model"], told["method"])
    when = str(told.get("when", ""))
    return Cell(subject, told["suite"], told["verdict"], told["reason"], rules, unsure, **more, when=when)
