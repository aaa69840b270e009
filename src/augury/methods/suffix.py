"""The card of `suffix`."""

from __future__ import annotations

from typing import Any

from augury.methods.bands import measured
from augury.methods.spec import MAX_NODES, Case, Inferred, LookUp, Method

SHORT = {
    "suffix_decoding_max_tree_depth": "depth",
    "suffix_decoding_max_cached_requests": "cached",
    "suffix_decoding_max_spec_factor": "factor",
    "suffix_decoding_min_token_prob": "prob",
}


def _depth(case: Case) -> Inferred:
    """K from the tree's depth, which counts match and draft together, so it is capped at the largest draft."""
    return min(case.keys["suffix_decoding_max_tree_depth"], MAX_NODES), "suffix_decoding_max_tree_depth"


def _words(config: Any) -> list[str]:
    written = config.to_dict()
    words = [f"{word}={written[key]}" for key, word in SHORT.items() if key in written]
    return words + ([f"tree={config.tree.max_nodes}x{config.tree.top_k}"] if config.tree else [])


SUFFIX = Method(
    name="suffix",
    help="Matches the last tokens in a suffix index of this request and of past answers, and drafts by frequency.",
    drafter="augury.drafters.suffix:SuffixDrafter",
    keys=(
        "suffix_decoding_max_tree_depth",
        "suffix_decoding_max_cached_requests",
        "suffix_decoding_max_spec_factor",
        "suffix_decoding_min_token_prob",
        "suffix_decoding_max_cached_bytes",
        "suffix_decoding_cache_path",
        "suffix_decoding_save_path",
        "tree",
    ),
    default_tokens=_depth,
    vllm_since="0.11.1",
    vllm_old_runner=True,
    vllm_async=False,
    vllm_tells_tokens=True,
    vllm_fixed_tokens=True,
    vllm_needs="pip install arctic-inference==0.1.1",
    band=measured(
        1.0, 1.4, 5.0, 16, "2.5-5.0 for agents, about 1 in open chat", "SuffixDecoding, NeurIPS 2025"
    )._replace(rate=None),
    look_up=LookUp(
        "augury.tools.replay.drafters:SuffixWalker",
        starts=({},),
        tokens=None,
        lengths=(1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32),
        words=_words,
        forgets={"suffix_decoding_max_cached_requests": 0},
    ),
)
