"""README and docs, block by block: each is run, here or in CI, or says why not (tests/helpers/followed.yml)."""

from __future__ import annotations

from pathlib import Path

import pytest
from follow_pages import follow
from page_blocks import Followed, followed, plan

ENTRIES = followed()
QUICK = [entry for entry in ENTRIES if entry.run == "test"]


def test_every_block_is_run_or_says_why_not() -> None:
    silent = [f"{entry.block.page}: {entry.block.begins}" for entry in ENTRIES if not entry.run and not entry.reason]
    assert not silent, "give each an entry in tests/helpers/followed.yml"
    assert all(entry.run in ("", "test", "ci") for entry in ENTRIES)
    assert all(bool(entry.only) == bool(entry.rest) for entry in ENTRIES)
    assert len(QUICK) >= 10 and len([entry for entry in ENTRIES if entry.run == "ci"]) >= 6


def test_every_entry_is_of_a_block() -> None:
    there = {(entry.block.page, entry.block.begins) for entry in ENTRIES}
    listed = {(page, begins) for page, entries in plan()["pages"].items() for begins in entries}
    assert listed == there


@pytest.mark.parametrize("entry", QUICK, ids=lambda entry: f"{entry.block.page}: {entry.block.begins[:40]}")
def test_a_block_shows_what_it_promises(entry: Followed, tmp_path: Path) -> None:
    follow(entry, tmp_path)
