"""What tests of `augury certify` share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from augury.cli import app


def augury(*words: str) -> Any:
    return CliRunner().invoke(app, ["certify", *words], prog_name="augury")


def check_page(path: Path, *words: str) -> None:
    """One file that needs no other, in both themes, with a picture."""
    page = path.read_text()
    assert page.startswith("<!doctype html>") and "<svg" in page and "prefers-color-scheme: dark" in page
    assert not any(thing in page for thing in ("<script", "<link", "@import", "src=", "url("))
    for word in (*words, "Conditions"):
        assert word in page
