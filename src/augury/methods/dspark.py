"""The card of `dspark`."""

from __future__ import annotations

from augury.methods.lengths import all_but_first
from augury.methods.spec import BLOCK_DROP_KEYS, SAMPLED_KEYS, TREE_KEYS, WEIGHT_KEYS, Facts, Inferred, Method, whole


def _block(facts: Facts) -> Inferred | None:
    for name in ("block_size", "dspark_block_size"):
        size = whole(facts.draft.get(name))
        if size:
            return size, f"the checkpoint's {name}"
    return None


DSPARK = Method(
    name="dspark",
    help="A block drafter whose tokens are tied together by a low-rank Markov correction.",
    drafter="augury.propose.dspark:DSparkDrafter",
    keys=(*WEIGHT_KEYS, *SAMPLED_KEYS, *TREE_KEYS, *BLOCK_DROP_KEYS, "parallel_drafting", "dspark_draft_topk"),
    weights="either",
    features="auxiliary",
    default_tokens=_block,
    extra_slots=all_but_first,
    lookahead=1,
    prefill_lookahead=1,
    vllm_since="0.25",
)
