"""The load script in short: 64 clients, a tenth of which leave midway; no error, and everything comes back."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from served import NGRAM

SCRIPT = Path(__file__).parents[2] / "helpers" / "soak.py"


@pytest.mark.slow
def test_sixty_four_clients(toy_model: Path) -> None:
    words = ["--clients", "64", "--seconds", "8", "--model", str(toy_model), "-sc", json.dumps(NGRAM)]
    told = subprocess.run([sys.executable, SCRIPT, *words], capture_output=True, text=True, timeout=240)
    assert told.returncode == 0, told.stderr
    figures = json.loads(told.stdout)
    assert figures["errors"] == {} and figures["requests_done"] > 64 and figures["requests_left_midway"] > 0
    assert figures["blocks_free_halfway"] < figures["blocks_free_before"] == figures["blocks_free_after"]
    grown = [figures["rss_mb_after"][who] - figures["rss_mb_before"][who] for who in ("server", "engine")]
    assert max(grown) < 60, figures
    assert figures["fairness_jain"] > 0.8 and figures["token_gap_p99_ms"] < 5000
