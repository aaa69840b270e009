"""Draft models and DFlash heads for hybrid targets, however they are served; `hybrid_matrix.py` runs every family."""

from __future__ import annotations

import pytest
from hybrid_matrix import WAYS, Family, make_family, prompts_of, serve_every_way

pytestmark = pytest.mark.usefixtures("one_thread_throughout")


@pytest.fixture(scope="module", params=["qwen3.5", "granite-4"])
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Family:
    return make_family(request.param, tmp_path_factory.mktemp("hybrid") / "target", prompts_of(2 * len(WAYS)))


@pytest.mark.parametrize("label", ["draft_model", "draft_model, tree", "dflash", "dflash, tree"])
def test_text_with_their_drafts(family: Family, label: str) -> None:
    """Greedy it is `generate`'s, at temperature 0.8 plain decoding's: cold, warm, preempted, evicted, asked again."""
    found = serve_every_way(family, label)
    assert found["answers"] == 5 * len(WAYS) and not found["wrong"] and not found["exceptions"]
    assert found["accepted"] > 5 and found["hits"] > 100
