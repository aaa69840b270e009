"""A few cases of the differential fuzzer for DFlash2; `python tests/helpers/dflash2_fuzz.py` runs many."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from dflash2_fuzz import Plain, run_case

pytestmark = pytest.mark.usefixtures("one_thread_throughout")
CASES = range(13, 19)  # some of which preempt


def test_random_heads_say_what_plain_decoding_says(toy_model: Path, tmp_path: Path) -> None:
    plain, went = Plain.of(toy_model, tmp_path / "target"), Counter[str]()
    for number in CASES:
        found = run_case(number, plain, tmp_path)
        assert not found.wrong
        went.update(found.counted)
    assert went["requests"] > 40 and went["accepted"] > 40 and went["cached"] > 40, went
    assert went["preempted"] > 0 and went["chains"] > 0 and went["trees"] > 0, went
