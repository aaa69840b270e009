"""`augury knowledge show METHOD`: a page for each method, by its name or its entry's id."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import pexpect
import pytest
from typer.testing import CliRunner

from augury.cli import app
from augury.methods.registry import METHODS
from augury.tools.knowledge.base import knowledge


def shown(*words: str) -> str:
    ran = CliRunner().invoke(app, ["knowledge", "show", *words])
    assert ran.exit_code == 0, ran.output
    return ran.stdout


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_a_page_without_blanks_to_fill_in(method: str) -> None:
    page = shown(method)
    assert page == shown(f"choose-{method.replace('_', '-')}") and page.startswith(f"{method}: ")
    card = METHODS[method]
    assert card.help in page and card.vllm_since in page
    lines = [line for line in page.splitlines() if not line.strip().startswith(("start with:", "what to do:"))]
    assert not [line for line in lines if "{" in line], page
    if card.band is not None and card.band.rate is not None:
        assert f"{card.band.rate[0]:.0%} to {card.band.rate[1]:.0%} of the drafted tokens accepted" in page


def test_the_page_of_mtp_reads_as_written_down() -> None:
    page = shown("mtp").splitlines()
    assert page[:9] == [
        "mtp: when the target ships MTP layers",
        "",
        f"  {METHODS['mtp'].help}",
        "  Trained with the target, no second checkpoint, the best acceptance for its cost; K is the trained depth or "
        "a multiple of it.",
        "",
        '  start with:  {"method": "mtp", "num_speculative_tokens": 1}',
        "  drafts from: layers in the target's own files; reads the target's last hidden state",
        "  in vLLM:     0.11 and later",
        "  healthy:     60% to 90% of the drafted tokens accepted, 1.6 to 1.9 tokens a step (K=1, DeepSeek-V3 class, "
        "n_predict=1)",
    ]
    assert any("[mtp-target-without]" in line for line in page) and page[-1].startswith("  source:")


def test_what_is_to_be_started_with_is_json() -> None:
    for entry in knowledge().values():
        if entry.kind == "methods" and entry.fix.startswith("{{"):
            line = next(line for line in shown(entry.id).splitlines() if "start with:" in line)
            assert json.loads(line.partition("start with:")[2])["method"] == entry.id.removeprefix("choose-").replace(
                "-", "_"
            )


def test_a_page_fits_a_narrow_terminal() -> None:
    plain: Any = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    words = ["-m", "augury", "knowledge", "show", "mtp"]
    child = pexpect.spawn(sys.executable, words, dimensions=(40, 60), env=plain, encoding="utf-8")
    child.expect(pexpect.EOF, timeout=120)
    rows = child.before.replace("\x1b[1m", "").replace("\x1b[0m", "").splitlines()
    assert max(len(row.rstrip()) for row in rows) <= 60 and any("mtp-target-without" in row for row in rows)


def test_json_and_other_kinds_are_as_before() -> None:
    assert json.loads(shown("mtp", "--json"))["id"] == "choose-mtp"
    assert "why:" in shown("key-gone") and "why:" not in shown("suffix")
