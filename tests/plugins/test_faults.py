"""A fault of ours is told, and vLLM goes on."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import vllm_modules
from vllm_lookup_config import configuration

from augury.plugins.vllm import coupled_v1, hooks
from augury.plugins.vllm.lookup import Ngram, Suffix
from augury.plugins.vllm.names import METRICS

LIMIT = 32


def test_a_drafter_that_fails_drafts_nothing_from_then_on(caplog: pytest.LogCaptureFixture) -> None:
    drafter = Ngram(configuration(LIMIT))
    ids = np.zeros((4, LIMIT), np.int32)
    ids[0, :6] = [1, 2, 3, 1, 2, 3]
    asked: list[Any] = [[3]], np.array([6]), ids
    assert drafter.propose(*asked) == [[1, 2, 3]]
    drafter.index = None  # type: ignore[assignment]
    assert drafter.propose(*asked) == [[]] == drafter.propose(*asked)
    assert caplog.text.count("stops drafting") == 1


def test_a_suffix_file_that_cannot_be_read_is_left_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for path in (tmp_path / "notes", tmp_path):  # no cache, and no file
        if path.is_dir() is False:
            path.write_text("something else")
        monkeypatch.setenv("AUGURY_SUFFIX_CACHE", str(path))
        drafter = Suffix(configuration(LIMIT))
        drafter.keep()
        assert drafter.cache.cached == []
    assert (tmp_path / "notes").read_text() == "something else"
    assert caplog.text.count("is left alone") == 2


def test_a_folder_that_is_gone_costs_the_answers_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AUGURY_SUFFIX_CACHE", str(tmp_path / "none" / "answers"))
    Suffix(configuration(LIMIT)).keep()
    assert "are not kept" in caplog.text


def test_a_release_that_breaks_every_hook_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    vllm_modules.put(monkeypatch)
    for number, fault in enumerate([RuntimeError("odd"), TypeError("odd"), OSError("odd")]):
        caplog.clear()
        monkeypatch.setattr(hooks, "_installed", False)
        monkeypatch.setattr(coupled_v1, "install", lambda fault=fault: (_ for _ in ()).throw(fault))
        with caplog.at_level(logging.WARNING, "vllm.augury"):
            hooks.install()
        assert len(caplog.records) == 1 and "odd" in caplog.text, number


@pytest.mark.parametrize("version, counts", [("0.30.0", True), ("0.40.0", False)])
def test_metrics_take_whatever_comes(monkeypatch: pytest.MonkeyPatch, version: str, counts: bool) -> None:
    vllm_modules.put(monkeypatch, version)
    from augury.plugins.vllm import stats

    entered: list[Any] = []
    monkeypatch.setattr(stats.SpeculationStats, "_enter", lambda self, seen: entered.append(seen.num_drafts))
    made = stats.SpeculationStats(SimpleNamespace())
    made.record(None, None)
    made.record(SimpleNamespace(spec_decoding_stats=SimpleNamespace(num_drafts=1)), None, mm_cache_stats=None)
    made.record(SimpleNamespace(spec_decoding_stats=SimpleNamespace()), None, engine_idx=0)  # a form we do not know
    made.record(SimpleNamespace(spec_decoding_stats=SimpleNamespace(num_drafts=1)), None)  # and then it is silent
    assert entered == [1] * counts


@pytest.mark.parametrize("said, estimated", [("0.02", True), (None, False), ("much", False)])
def test_the_speed_up_is_estimated_where_the_cost_of_a_row_is_told(
    monkeypatch: pytest.MonkeyPatch, said: str | None, estimated: bool
) -> None:
    vllm_modules.put(monkeypatch)
    if said is not None:
        monkeypatch.setenv("AUGURY_ROW_COST", said)
    from augury.plugins.vllm import stats

    set_to: dict[str, float] = {}
    one = SimpleNamespace(inc=lambda count: None)
    counters = [SimpleNamespace(labels=lambda *labels: one) for _ in range(2)]
    gauges = [
        SimpleNamespace(labels=lambda *labels, name=name: SimpleNamespace(set=partial(set_to.__setitem__, name)))
        for name in METRICS[2:]
    ]
    monkeypatch.setattr(stats, "_metrics", lambda: (*counters, *gauges))
    made = stats.SpeculationStats(SimpleNamespace())
    for drafts, tokens, accepted in ((4, 12, 6), (2, 8, 0)):  # two steps with 10 drafted rows in the mean
        seen = SimpleNamespace(
            num_drafts=drafts, num_draft_tokens=tokens, num_accepted_tokens=accepted, num_draft_tokens_per_pos=[]
        )
        made.record(SimpleNamespace(spec_decoding_stats=seen), None)
    assert set_to["augury:acceptance_length"] == 2 and set_to["augury:rejected_share_of_drafts"] == pytest.approx(0.7)
    assert (set_to.get("augury:speedup_estimate") == pytest.approx(2 / 1.2)) is estimated
    assert estimated or "augury:speedup_estimate" not in set_to
