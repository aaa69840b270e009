"""Hybrid targets on a GPU: the torch reference of the recurrence, without graphs, says what `generate` says."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hybrid_cases import save_hybrid
from hybrid_runs import SUFFIX_TREE, WIDE, ask, engine, generated, know, random_prompts

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
PROMPTS = random_prompts((5, 23, 40, 9))


@pytest.mark.parametrize("name", ["qwen3-next", "qwen3.5", "nemotron-h", "falcon-h1", "granite-4", "bamba", "lfm2"])
def test_text_is_generates(name: str, tmp_path: Path) -> None:
    """In float32: plain, with a suffix tree, and with trees of which much is right; cold and warm."""
    model = save_hybrid(name, tmp_path)
    greedy = generated(model, PROMPTS)
    plain = engine(tmp_path, device="cuda", dtype="float32")
    assert ask(plain, PROMPTS) == greedy
    for spec in (SUFFIX_TREE, WIDE):
        llm = engine(tmp_path, plain, device="cuda", dtype="float32", speculative_config=spec)
        if spec is WIDE:
            know(llm, PROMPTS, greedy, branching=True)
        assert ask(llm, PROMPTS) == greedy
        assert ask(llm, PROMPTS) == greedy
        assert llm.engine.stats.spec.num_accepted_tokens > 0 and llm.engine.stats.prefix_cache_hits > 0
