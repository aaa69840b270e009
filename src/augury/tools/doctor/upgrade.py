"""What an upgrade of vLLM changes for commands: keys, defaults, rules that open and close, and what to measure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from augury.config.errors import ConfigError
from augury.config.keys import OWN
from augury.config.read import KEYS
from augury.config.versions import Version, version
from augury.tools.doctor.examine import CheckedAgainst, Examination, Examined, check_release, examine
from augury.tools.doctor.findings import Finding
from augury.tools.knowledge.base import Entry, knowledge
from augury.tools.knowledge.conditions import KnownFacts, holds

WRITTEN = ("key-", "value-", "flag-", "method-", "backend-")  # prefixes of ids that concern what is written
ANSWERS = "-text"  # suffix of ids that concern wrong output text
USUAL = "acceptance length, throughput and p99 at your own load (`augury check`, `augury bench serve`)"
COMPARE = "greedy answers of the same prompts on both releases (`augury certify`)"
NOTHING = "nothing"


@dataclass(slots=True)
class Upgrade:
    """One command on two releases."""

    name: str
    line: int
    program: str
    target: str
    keys: list[Finding] = field(default_factory=list)  # about what is written, and new in the new release
    new_keys: list[str] = field(default_factory=list)  # introduced in between and read by its method
    changes: list[Entry] = field(default_factory=list)
    opened: list[Finding] = field(default_factory=list)
    closed: list[Finding] = field(default_factory=list)
    stays: list[Finding] = field(default_factory=list)

    @property
    def measure(self) -> list[str]:
        """What to measure before and after, specific measurements first."""
        told = [entry.fix for entry in self.changes if not entry.fix.startswith(NOTHING)]
        wrong = any(finding.id.endswith(ANSWERS) for finding in (*self.opened, *self.closed))
        anything = told or self.opened or self.closed
        usual = [COMPARE] * wrong + [USUAL] * bool(anything)
        return list(dict.fromkeys([*told, *usual]))

    @property
    def quiet(self) -> bool:
        """Whether the upgrade changes nothing for this command."""
        return not (self.keys or self.changes or self.opened or self.closed)


def releases(old: str | None, new: str | None) -> tuple[str, str]:
    """Check the two releases and return them; a ConfigError if one is missing, malformed or out of order."""
    if old is None or new is None:
        raise ConfigError("an upgrade needs both releases; write --from 0.27 --to 0.28.")
    check_release(old, "--from"), check_release(new, "--to")
    if version(old) >= version(new):
        raise ConfigError(f"--from {old} --to {new}: the second must be the later release.")
    return old, new


def upgrades(text: str, name: str, asked: CheckedAgainst, old: str, new: str) -> list[Upgrade]:
    """Every vLLM command of a text on both releases, whatever release the file names."""
    before = examine(text, name, asked._replace(release=old))
    after = examine(text, name, asked._replace(release=new))
    pairs = zip(before.commands, after.commands, strict=True)
    return [_upgrade(after, one, other, version(old), version(new)) for one, other in pairs if one.release]


def _upgrade(where: Examination, before: Examined, after: Examined, old: Version, new: Version) -> Upgrade:
    left, came = _by_id(before), _by_id(after)
    found = Upgrade(where.name, where.place(after.start)[0], after.program, after.target or "")
    opened = [finding for name, finding in came.items() if name not in left]
    found.keys = [finding for finding in opened if finding.id.startswith(WRITTEN)]
    found.opened = [finding for finding in opened if not finding.id.startswith(WRITTEN)]
    found.closed = [finding for name, finding in left.items() if name not in came]
    found.stays = [finding for name, finding in came.items() if name in left and finding.severity != "note"]
    found.changes = list(_changes(after, old, new))
    found.new_keys = _new_keys(after, old, new)
    return found


def _by_id(command: Examined) -> dict[tuple[str, int], Finding]:
    return {(finding.id, finding.start): finding for finding in command.findings}


def _changes(command: Examined, old: Version, new: Version) -> Iterator[Entry]:
    """The changes between the two releases that apply to a command, in the order of the file."""
    known = KnownFacts(command.facts, command.keys)
    for entry in knowledge("changes").values():
        since = version(entry.versions.since or "0.0")
        if old < since <= new and holds(entry.condition, known):
            yield entry


def _new_keys(command: Examined, old: Version, new: Version) -> list[str]:
    """Keys that the command's method reads and that were introduced after the old release."""
    method = command.facts.get("method")
    if method is None:
        return []
    came = [key for key in KEYS.values() if key.since != OWN and key.until is None and old < version(key.since) <= new]
    return [key.name for key in came if (not key.methods or method in key.methods) and key.name not in command.keys]
