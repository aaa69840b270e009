"""The card of `dflash`."""

from augury.methods.spec import (
    BLOCK_DROP_KEYS,
    PADDED_KEYS,
    SAMPLED_KEYS,
    TREE_KEYS,
    WEIGHT_KEYS,
    Band,
    Facts,
    Method,
    whole,
)


def _block(facts: Facts) -> int | None:
    inner = facts.draft.get("dflash_config")
    size = whole(facts.draft.get("block_size")) or whole(inner.get("block_size") if isinstance(inner, dict) else None)
    return size if size and size > 1 else None


def _block_less_one(facts: Facts) -> tuple[int, str] | None:
    size = _block(facts)
    return (size - 1, f"the checkpoint's block_size of {size}, less the known token") if size else None


def _within_block(tokens: int, facts: Facts) -> str | None:
    size = _block(facts)
    if size and tokens > size:
        return f"must be at most the checkpoint's block_size of {size}; write {size - 1}"
    return None


def _slots(tokens: int, parallel: bool) -> int:
    return tokens


DFLASH = Method(
    name="dflash",
    help="Fills a whole block of masked positions in one pass over several of the target's layers.",
    drafter="augury.propose.dflash:DFlashDrafter",
    keys=(*WEIGHT_KEYS, *SAMPLED_KEYS, *TREE_KEYS, *PADDED_KEYS, *BLOCK_DROP_KEYS, "parallel_drafting"),
    weights="draft",
    features="auxiliary",
    default_tokens=_block_less_one,
    check_tokens=_within_block,
    extra_slots=_slots,
    lookahead=2,
    prefill_lookahead=1,
    vllm_since="0.20",
    band=Band((0.80, 0.90), (3.5, 4.5), "Qwen3, batch 1"),
)
