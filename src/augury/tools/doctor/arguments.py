"""The arguments of a found command: its flags, and the keys of speculative_config with the edits that change them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from augury.tools.doctor.found.command import FoundCommand
from augury.tools.doctor.found.places import Edit, Member, Node, add, drop, rename, set_value
from augury.tools.doctor.found.shell_words import Word
from augury.tools.doctor.problems import Problem

UNITS = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}  # as vLLM reads them


class Flag(NamedTuple):
    """A flag, its value as written, and the positions of both."""

    name: str  # with dashes, without the leading ones
    written: str
    start: int
    end: int  # of the flag alone
    word: Word | None = None
    value: Any = None
    stop: int = 0  # of the value
    node: Node | None = None  # in a file of settings
    member: Member | None = None
    shell: bool = True

    def removal(self) -> list[Edit]:
        """The edit that removes the flag and its value; none for an element of a list, which is removed by hand."""
        return [Edit(self.start, self.stop, "")] if self.shell and self.member is None else []


@dataclass(slots=True)
class WrittenKey:
    """One key of speculative_config and how to edit it in place."""

    value: Any
    start: int
    end: int
    node: Node | None = None
    member: Member | None = None
    flag: Flag | None = None

    def set(self, value: Any) -> list[Edit]:
        """The edits that give it another value."""
        if self.member is not None:
            return set_value(self.member, value)
        if self.flag is not None and self.flag.word is not None:
            word = self.flag.word
            return [Edit(word.start, word.end, word.anew(value if isinstance(value, str) else json.dumps(value)))]
        return []

    def drop(self) -> list[Edit]:
        """The edits that remove it."""
        if self.node is not None and self.member is not None:
            return drop(self.node, self.member)
        return self.flag.removal() if self.flag is not None else []

    def rename(self, name: str) -> list[Edit]:
        """The edits that give it another name."""
        return rename(self.member, name) if self.member is not None else []


@dataclass(slots=True)
class ReadArguments:
    """A parsed command."""

    found: FoundCommand
    flags: list[Flag] = field(default_factory=list)
    positionals: list[Word] = field(default_factory=list)
    keys: dict[str, WrittenKey] = field(default_factory=dict)
    whole: Node | None = None  # the object that holds most keys
    speculates: bool = False
    readable: bool = True  # False: a configuration is there but could not be read
    partial: bool = False  # some of its keys are known only at run time
    problems: list[Problem] = field(default_factory=list)

    def flag(self, *names: str) -> Flag | None:
        """The last flag with any of these names, since the last one wins."""
        return next((flag for flag in reversed(self.flags) if flag.name in names), None)

    @property
    def target(self) -> str | None:
        """The model that is served, as written."""
        flag = self.flag("model")
        if flag is not None and isinstance(flag.value, str):
            return flag.value
        return self.positionals[0].text if self.positionals else None

    def number(self, name: str) -> int | None:
        """A flag's value as a whole number."""
        flag = self.flag(name)
        return whole_number(flag.value) if flag else None

    def switch(self, name: str) -> bool | None:
        """Whether a switch is on; None if it is not mentioned."""
        for flag in reversed(self.flags):
            if flag.name == name:
                return str(flag.value).lower() not in ("false", "0", "no")
            if flag.name == f"no-{name}" or (name.startswith("enable-") and flag.name == f"disable-{name[7:]}"):
                return str(flag.value).lower() in ("false", "0", "no")
        return None

    def object(self, name: str) -> dict[str, Any]:
        """A flag's value as a JSON object; empty if it is not one."""
        flag = self.flag(name)
        value = flag.value if flag else None
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except (ValueError, RecursionError):
                return {}
        return value if isinstance(value, dict) else {}

    def add_key(self, name: str, value: Any) -> list[Edit]:
        """The edits that add a key; none if there is no object to add it to."""
        return add(self.whole, name, value) if self.whole is not None else []


def whole_number(value: Any) -> int | None:
    """Parse a whole number as flags accept it (8192, "8192", "8k"); None if it is not one."""
    if isinstance(value, bool) or value is None:
        return None
    found = re.fullmatch(r"(\d{1,15}(?:\.\d+)?)([kmgKMG]?)", str(value).strip())
    return int(float(found[1]) * UNITS.get(found[2], 1)) if found else None
