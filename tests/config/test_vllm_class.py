"""Our answers for a vLLM release against its own class: from a record, and live where a wheel is at hand."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pytest
from vllm_oracle import record, wheel
from vllm_oracle.cases import Case, all_cases
from vllm_oracle.checkpoints import make
from vllm_oracle.compare import EXPLAINED, differences, summary, verdict_on
from vllm_oracle.drawn import drawn
from vllm_oracle.sides import doctor, ours, theirs

CASES = {case.name: case for case in all_cases()}


def test_the_cases_are_many_and_no_two_have_one_name() -> None:
    assert len(all_cases()) == len(CASES) >= 400


def test_every_recorded_answer_is_ours_or_has_a_verdict(tmp_path: Path) -> None:
    kept = record.read()
    cases = [CASES[name] for name in kept["cases"]]
    assert len(cases) > 300
    found, asked = differences(cases, kept["cases"], kept["release"], make(tmp_path))
    assert [one for one in found if not one.verdict] == []
    assert summary(found, asked)["share"]["config check"] >= 0.95  # the sample keeps every kind of difference


def test_every_verdict_is_about_a_case() -> None:
    for one in EXPLAINED:
        tool = "doctor" if one.tool == "both" else one.tool
        assert any(verdict_on(tool, name) == one.verdict for name in CASES), one.names


@pytest.mark.slow
def test_the_class_itself_agrees(tmp_path: Path) -> None:
    folder = wheel.at_hand()
    if folder is None:
        pytest.skip(f"no vLLM wheel at hand: {wheel.FOLDER} names none")
    answers = dict(zip(CASES, theirs(CASES.values(), folder, make(tmp_path)), strict=True))
    found, asked = differences(CASES.values(), answers, wheel.release_of(folder), tmp_path)
    assert [one for one in found if not one.verdict] == []
    assert summary(found, asked)["share"]["config check"] >= 0.97
    cases = drawn(200, seed=3)
    answers = dict(zip((case.name for case in cases), theirs(cases, folder, tmp_path), strict=True))
    found, _ = differences(cases, answers, wheel.release_of(folder), tmp_path)
    assert [one for one in found if not one.verdict] == []


def test_what_is_drawn_is_the_same_again_and_has_its_verdict_by_words() -> None:
    assert drawn(50, seed=1) == drawn(50, seed=1) != drawn(50, seed=2)
    said = "refused: attention_backend Value error, Unknown attention backend: 'FLASH_ATN' | accepted"
    assert "plugins" in verdict_on("doctor", "drawn/1/33", said)
    assert not verdict_on("config check", "drawn/1/33", said) and not verdict_on("doctor", "key/33", said)


SUFFIX_KEYS = {"suffix_decoding_max_cached_requests": 0.5, "suffix_decoding_max_tree_depth": ""}
REFUSED_BY_0_32 = [
    {"method": "ngram", "disable_by_batch_size": None},  # gone, and refused with null as with any value
    {"method": "ngram", "adaptive": None},  # ours
    *({"method": "ngram", name: value} for name, value in SUFFIX_KEYS.items()),  # not read, and yet of the wrong type
]
TAKEN_BY_0_32 = [
    {"method": "ngram", "draft_load_config": None},
    {"method": "ngram", "suffix_decoding_max_tree_depth": 0},  # out of range, which suffix alone looks at
    {"method": "ngram_gpu", "num_speculative_tokens_per_batch_size": [[1, 8, 2], [9, 64, 1]]},  # on the new runner
]


@pytest.mark.parametrize("given", [*REFUSED_BY_0_32, *TAKEN_BY_0_32])
def test_found_by_drawing(given: dict[str, Any], tmp_path: Path) -> None:
    case, models = Case("drawn", {"num_speculative_tokens": 3, **given}), make(tmp_path)
    taken = given in TAKEN_BY_0_32
    assert ours(case, "0.32.0", models)["accepted"] is taken
    assert doctor(case, "0.32.0", models)["accepted"] is taken


def test_what_is_no_wheel_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "bad.whl").write_text("no archive")
    with zipfile.ZipFile(tmp_path / "other.whl", "w") as archive:
        archive.writestr("other/__init__.py", "")
    for name in ("none.whl", "bad.whl", "other.whl", "."):
        with pytest.raises(wheel.NoWheel, match=r"is no wheel|holds no release"):
            wheel.unzipped(tmp_path / name)
    with zipfile.ZipFile(tmp_path / "vllm-1.whl", "w") as archive:
        archive.writestr("vllm-1.dist-info/METADATA", "")
        archive.writestr("vllm/_C.so", "compiled")
        archive.writestr("vllm/__init__.py", "")
    folder = wheel.unzipped(tmp_path / "vllm-1.whl")
    assert folder == wheel.unzipped(tmp_path / "vllm-1.whl") and not (folder / "vllm" / "_C.so").exists()
