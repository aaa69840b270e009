"""Draft models and DFlash heads for hybrid targets, however they are served; `hybrid_matrix.py` runs every family."""

from __future__ import annotations

import pytest
from hybrid_matrix import Family, make_family, prompts_of, serve_every_way

pytestmark = pytest.mark.usefixtures("one_thread_throughout")


WAYS = ("batch 3, chunk 7", "preempted, blocks evicted")


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Family:
    return make_family("granite-4", tmp_path_factory.mktemp("hybrid") / "target", prompts_of(8), WAYS)


@pytest.mark.parametrize("label", ["draft_model", "draft_model, tree", "dflash", "dflash, tree"])
def test_text_with_their_drafts(family: Family, label: str) -> None:
    """Greedy it is `generate`'s, at temperature 0.8 plain decoding's: cold, warm, preempted, asked again."""
    found = serve_every_way(family, label)
    assert found["answers"] == 20 and not found["wrong"] and not found["exceptions"]
    assert found["accepted"] > 5 and found["hits"] > 0 and found["preempted"] > 0, found
