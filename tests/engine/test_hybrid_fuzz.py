"""A few cases of the differential fuzzer for hybrid targets; `python tests/helpers/hybrid_fuzz.py` runs many."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hybrid_fuzz import Oracle, run_case

pytestmark = pytest.mark.usefixtures("one_thread_throughout")
CASES = 4


@pytest.mark.parametrize("name", ["qwen3.5", "granite-4", "lfm2"])
def test_random_engines_say_what_plain_decoding_says(name: str, tmp_path: Path) -> None:
    oracle, went = Oracle.of(name, tmp_path), Counter[str]()
    for number in range(CASES):
        found = run_case(number, oracle)
        assert not found.wrong
        went.update(found.counted)
    assert went["requests"] > 20 and went["accepted"] > 20 and went["cached"] > 20, went
    assert went["preempted"] > 0 and went["aborted"] > 0, went  # case 1: eight at a time, blocks for one
