"""What is known about speculation in vLLM, as entries of knowledge/*.yaml: schema, loading, look-up."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from string import Formatter
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from augury.config.errors import ConfigError
from augury.config.versions import Version, valid_in, version
from augury.tools.knowledge.conditions import check_condition
from augury.tools.knowledge.fact_names import FACTS, SAYS

FOLDER = Path(__file__).parent
KINDS = ("pitfalls", "gates", "composability", "fits", "bugs", "changes", "methods", "targets", "bands", "diagnoses")
LINTED = (
    "pitfalls",
    "gates",
    "composability",
    "fits",
    "bugs",
)  # kinds that a command can show; the others are for people and for `check`
Severity = Literal["error", "warning", "note"]


class _Written(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ReleaseRange(_Written):
    """The vLLM releases an entry applies to: from `since` to before `until`."""

    since: str | None = None
    until: str | None = None

    @model_validator(mode="after")
    def _readable(self) -> ReleaseRange:
        for bound in filter(None, (self.since, self.until)):
            version(bound, "versions")
        return self

    def __str__(self) -> str:
        """The window in words."""
        if self.since and self.until:
            return f"{self.since} to before {self.until}"
        return f"{self.since} and later" if self.since else f"before {self.until}" if self.until else "all"


class CommandFix(_Written):
    """How to fix a command: one key of speculative_config, or one flag."""

    drop_key: str | None = None
    set_key: dict[str, Any] | None = None
    drop_flag: str | None = None


class Evidence(_Written):
    """A fact that speaks for a cause, or against it."""

    when: dict[str, Any]
    says: str

    @model_validator(mode="after")
    def _consistent(self) -> Evidence:
        wrong = check_condition(self.when) or _not_facts(self.says)
        if wrong:
            raise ValueError(wrong)
        return self


class Cause(_Written):
    """A possible cause of a symptom, and the one measurement that would confirm it."""

    cause: str
    supported: tuple[Evidence, ...] = ()
    contradicted: tuple[Evidence, ...] = ()
    confirm: str  # URL, COMMAND and the like stand for the user's own

    @model_validator(mode="after")
    def _consistent(self) -> Cause:
        if wrong := _not_facts(self.cause):
            raise ValueError(wrong)
        return self


class Entry(_Written):
    """One entry: when it applies, what it says, why, and what to do."""

    id: str = Field(pattern=r"^[a-z0-9]+(-[a-z0-9.]+)*$")
    kind: str
    severity: Severity = "note"
    condition: dict[str, Any]  # defaults to the problem of the same name
    versions: ReleaseRange = ReleaseRange()
    title: str = ""  # the subject, if the message is composed elsewhere
    message: str
    why: str
    fix: str
    source: str = "vLLM 0.32 source, config/speculative.py"
    at: tuple[str, ...] = ()  # keys, --flags or $VARIABLES to point at; the first one present is used
    tools: tuple[Literal["vllm", "augury"], ...] = ("vllm",)
    change: CommandFix | None = None
    lint: bool = True  # False: a command does not show it, or it is not a fault
    causes: tuple[Cause, ...] = ()  # of the symptom, likeliest first
    suites: tuple[str, ...] = ()  # of `augury certify --suite`, in which it would show

    @model_validator(mode="after")
    def _consistent(self) -> Entry:
        wrong = check_condition(self.condition)
        if wrong:
            raise ValueError(wrong)
        if self.message == "{text}" and not self.title:
            raise ValueError("a message that is put together elsewhere needs a title")
        if wrong := next(filter(None, map(_not_facts, (self.message, self.why, self.fix))), None):
            raise ValueError(wrong)
        return self

    @property
    def headline(self) -> str:
        """One line for lists, with its placeholders left readable."""
        return readable(self.title or self.message)

    @property
    def linted(self) -> bool:
        """Whether `augury doctor` looks for it."""
        return self.lint and self.kind in LINTED

    def covers(self, release: Version) -> bool:
        """Whether it applies to a release."""
        return valid_in(release, self.versions.since or "0.0", self.versions.until)


def _not_facts(text: str) -> str | None:
    """A message about the first placeholder in a sentence that nothing would fill; None if there is none."""
    names = (name for _, name, _, _ in Formatter().parse(text) if name is not None)
    return next(
        (f"{{{name}}} in a sentence is no fact" for name in names if name not in FACTS and name not in SAYS), None
    )


def readable(text: str) -> str:
    """A sentence with its format placeholders made readable."""
    return text.replace("{{", "{").replace("}}", "}").replace("!r}", "}")


@cache
def knowledge(*kinds: str) -> dict[str, Entry]:
    """Entries by id, of the given kinds or of all; only their files are read, because reading takes time."""
    found: dict[str, Entry] = {}
    for kind in kinds or KINDS:
        for entry in _entries(kind):
            if entry.id in found:
                raise ConfigError(f"knowledge/{kind}.yaml: {entry.id} is there twice; ids are unique.")
            found[entry.id] = entry
    return found


@cache
def _entries(kind: str) -> list[Entry]:
    return read_file(FOLDER / f"{kind}.yaml", kind)


def read_file(file: Path, kind: str) -> list[Entry]:
    """The entries of one file, checked."""
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        written = yaml.load(file.read_text(encoding="utf-8"), Loader=loader)  # noqa: S506 (it is a safe one)
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"{file.name}: {' '.join(str(error).split())}.") from None
    if not isinstance(written, list):
        raise ConfigError(f"{file.name} must be a list of entries.")
    return [_entry(one, kind, file.name) for one in written]


def _entry(written: Any, kind: str, file: str) -> Entry:
    name = written.get("id", "?") if isinstance(written, dict) else "?"
    try:
        return Entry(**{"condition": {"problem": name}, **written, "kind": kind})
    except (ValidationError, TypeError) as error:
        says = error.errors()[0] if isinstance(error, ValidationError) else {"loc": (), "msg": str(error)}
        where = ".".join(map(str, says["loc"]))
        raise ConfigError(f"{file}: {name}: {where} {says['msg']}".rstrip(".") + ".") from None


def look_up(name: str) -> Entry:
    """An entry by its id; a ConfigError that suggests similar ids if it is unknown."""
    from difflib import get_close_matches

    entries = knowledge()
    if name in entries:
        return entries[name]
    close = get_close_matches(name, entries, n=3, cutoff=0.5) or [i for i in entries if re.search(re.escape(name), i)]
    hint = f"did you mean {', '.join(close[:3])}?" if close else "`augury knowledge list` shows what there is."
    raise ConfigError(f"knowledge {name!r} is unknown; {hint}")
