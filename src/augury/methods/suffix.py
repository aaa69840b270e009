"""The card of `suffix`."""

from augury.methods.spec import MAX_NODES, Band, Facts, Inferred, Method


def _depth(facts: Facts) -> Inferred:
    """A depth is match and draft together, so a deep tree needs no longer drafts than there can be."""
    return min(facts.keys["suffix_decoding_max_tree_depth"], MAX_NODES), "suffix_decoding_max_tree_depth"


SUFFIX = Method(
    name="suffix",
    help="Matches the last tokens in a suffix index of this request and of past answers, and drafts by frequency.",
    drafter="augury.propose.suffix:SuffixDrafter",
    keys=(
        "suffix_decoding_max_tree_depth", "suffix_decoding_max_cached_requests", "suffix_decoding_max_spec_factor",
        "suffix_decoding_min_token_prob", "suffix_decoding_max_cached_bytes", "suffix_decoding_cache_path",
        "suffix_decoding_save_path", "tree",
    ),
    default_tokens=_depth,
    vllm_since="0.11.1",
    vllm_old_runner=True,
    vllm_async=False,
    band=Band(None, (1.0, 5.0), "2.5-5.0 for agents, about 1 in open chat"),
)  # fmt: skip
