"""Commands, options and JSON outputs are those of the record, tests/recorded/commands.json.

A change of them is a change for users: it belongs in CHANGELOG.md, and then the record is written anew with
`AUGURY_RECORD=1 pytest tests/test_command_record.py`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from command_record import commands, empty_cache, outputs
from vllm_text import RECORDED

RECORD = RECORDED / "commands.json"
ADVICE = "if it is meant: say it in CHANGELOG.md, then AUGURY_RECORD=1 pytest tests/test_command_record.py"


def record(part: str, found: dict[str, Any]) -> dict[str, Any]:
    """What was recorded of one part; `found` is recorded first where AUGURY_RECORD says so."""
    whole = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    if os.environ.get("AUGURY_RECORD"):
        whole[part] = found
        RECORD.write_text(written(whole) + "\n")
    return dict(whole[part])


def written(value: Any, depth: int = 0) -> str:
    """JSON with one option a line, so that a change of one shows as one."""
    if not isinstance(value, dict) or depth == 4 or not value:
        return json.dumps(value, sort_keys=True)
    rows = [f"{' ' * (depth + 1)}{json.dumps(key)}: {written(one, depth + 1)}" for key, one in sorted(value.items())]
    return "{\n" + ",\n".join(rows) + "\n" + " " * depth + "}"


def changes(before: Any, after: Any, where: str = "") -> list[str]:
    """Each difference in a line."""
    if isinstance(before, dict) and isinstance(after, dict):
        names = sorted({*before, *after})
        return [line for name in names for line in changes(before.get(name), after.get(name), f"{where} / {name}")]
    return [] if before == after else [f"{where}: was {before}, is {after}"]


def test_every_command_and_option_is_as_recorded() -> None:
    found = commands()
    assert changes(record("commands", found), found) == [], ADVICE


def test_every_json_output_has_the_keys_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with empty_cache(tmp_path / "cache"):
        found = outputs(tmp_path)
    kept = record("outputs", found)
    wrong = {name: sorted(set(kept.get(name, ())) ^ set(found.get(name, ()))) for name in {*kept, *found}}
    assert not any(wrong.values()), (wrong, ADVICE)


def test_a_changed_option_is_seen() -> None:
    assert changes({"a": {"default": 1}}, {"a": {"default": 1}}) == []
    assert changes({"a": {"default": 1}}, {"a": {"default": 2}, "b": {}}) == [
        " / a / default: was 1, is 2",
        " / b: was None, is {}",
    ]
