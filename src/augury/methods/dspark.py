"""The card of `dspark`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from augury.methods.bands import measured
from augury.methods.errors import problem
from augury.methods.facts import ModelFacts, architectures
from augury.methods.lengths import all_but_first
from augury.methods.notes import Note
from augury.methods.spec import (
    BLOCK_DROP_KEYS,
    MODEL_KEYS,
    Case,
    GateRecipe,
    Inferred,
    Method,
    Signs,
    SpeculatorType,
    UsualHead,
    whole,
)

OMNI = "Qwen3OmniDSparkModel"
WITH_TOPK = ("Qwen3DSparkModel", OMNI)
KNOWN = (*WITH_TOPK, "Gemma4DSparkModel")


def _block(case: Case) -> Inferred | None:
    for name in ("block_size", "dspark_block_size"):
        size = whole(case.stated.get(name))
        if size:
            return size, f"the checkpoint's {name}"
    return None


def _within_block(tokens: int, case: Case) -> str | None:
    block = _block(case)
    if block and tokens > block[0]:
        return f"must be at most the checkpoint's block_size of {block[0]}; write {block[0]}"
    return None


def _fits(case: Case) -> tuple[Note, ...]:
    topk, draft, target = case.keys.get("dspark_draft_topk"), case.draft, case.target.facts
    if draft is None:
        return ()
    if topk is not None and not any(name in WITH_TOPK for name in draft.architectures):
        raise problem("dspark_draft_topk", topk, f"works only with {' or '.join(WITH_TOPK)}; remove it")
    vocab = draft.number("draft_vocab_size", "vocab_size")
    if topk is not None and vocab is not None and topk > vocab:
        raise problem("dspark_draft_topk", topk, f"is more than the drafter's vocabulary of {vocab}; lower it")
    if target is not None and "qwen3_omni" in target.kind:
        _check_omni(case.keys, target, draft)
    return ()


def _check_omni(keys: Mapping[str, Any], target: ModelFacts, draft: ModelFacts) -> None:
    raw = draft.raw
    given, layers, rope = raw.get("target_layer_ids"), target.layers or 0, raw.get("rope_scaling")
    ids = [i for i in given if isinstance(i, int)] if isinstance(given, list) else []
    rising = isinstance(given, list) and ids == given and ids == sorted(set(ids)) and all(0 <= i < layers for i in ids)
    wrong = [
        (OMNI not in draft.architectures, f"the architecture {OMNI}"),
        (keys.get("num_speculative_tokens") not in (None, 0, raw.get("block_size")), "K equal to its block_size"),
        (draft.hidden_size != target.hidden_size, "the target's hidden_size"),
        (draft.heads != target.heads, "the target's num_attention_heads"),
        (draft.number("head_dim") != target.number("head_dim"), "the target's head_dim"),
        (not rising, "rising target_layer_ids in range"),
        (raw.get("use_aux_hidden_state") is not True, "use_aux_hidden_state true"),
        (not (draft.number("markov_rank") or 0) > 0, "markov_rank above 0"),
        (raw.get("markov_head_type") != "vanilla", "markov_head_type 'vanilla'"),
        (raw.get("sample_from_anchor") is not True, "sample_from_anchor true"),
        (raw.get("dspark_bonus_anchor", False) is not False, "dspark_bonus_anchor false"),
        (draft.vocab_size != target.vocab_size, "the target's vocab_size"),
        (not 0 <= (draft.number("mask_token_id") or 0) < (target.vocab_size or 0), "mask_token_id in the vocabulary"),
        (isinstance(rope, Mapping) and "mrope_section" in rope, "no mrope"),
    ]
    missing = next((text for is_wrong, text in wrong if is_wrong), None)
    if missing:
        raise problem("model", draft.name, f"does not fit a Qwen3-Omni target: a DSpark drafter needs {missing}")


def _skips_anchor(case: Case) -> bool:
    """The speculators format leaves the anchor's row out unless it says otherwise."""
    raw = case.draft.raw if case.draft else {}
    return case.draft is not None and not raw.get("sample_from_anchor", "speculators_model_type" not in raw)


def _named_otherwise(draft: Mapping[str, Any]) -> bool:
    classes = architectures(draft)
    return any(a in KNOWN for a in classes) or ("DSparkDraftModel" in classes and draft.get("model_type") == "qwen3")


DSPARK = Method(
    name="dspark",
    help="A block drafter whose tokens are tied together by a low-rank Markov correction.",
    drafter="augury.drafters.dspark:DSparkDrafter",
    keys=(*MODEL_KEYS, *BLOCK_DROP_KEYS, "parallel_drafting", "dspark_draft_topk"),
    weights="either",
    features="auxiliary",
    signs=Signs(speculators={"dspark": SpeculatorType()}, architectures=("DSpark",), names=("dspark",)),
    default_tokens=_block,
    check_tokens=_within_block,
    check=_fits,
    always_parallel=True,
    inside="DSpark layers inside a target (DeepSeek-V4) do not run here",
    shards_adaptively=True,
    extra_slots=all_but_first,
    lookahead=1,
    skips_first_row=_skips_anchor,
    prefill_lookahead=1,
    vllm_since="0.25",
    vllm_tells_tokens=True,
    vllm_checks_tokens=False,
    vllm_detects=_named_otherwise,
    band=measured(3.3, 4.6, 5.8, 15, "offline, 16 to 18 % above DFlash", "DSpark paper"),
    vllm_classes={
        "DSparkDraftModel": ("0.25", None),
        "Qwen3DSparkModel": ("0.25", None),
        "Gemma4DSparkModel": ("0.26", None),
        "K3DSparkModel": ("0.27", None),
        "DSparkV41DraftModel": ("0.28", None),
        OMNI: ("0.28", None),
    },
    one_pass=True,
    usual=UsualHead(layers=5),
    gates={"dspark": GateRecipe("augury.train.dspark:train_dspark", 200, rate=2e-3)},
)
