"""The card of `eagle3`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from augury.methods.bands import measured
from augury.methods.fits import LAYER_IDS, check_layers, one_layer, same_width
from augury.methods.lengths import all_but_first, multiple_of_depth, predict_depth
from augury.methods.notes import Note
from augury.methods.spec import HEAD_KEYS, PAIRS, Case, GateRecipe, Method, Signs, SpeculatorType, Trained, UsualHead

OWN_WORDS = 32000  # what published heads choose from


def _fits(case: Case) -> tuple[Note, ...]:
    same_width(case)
    ids = case.draft.raw.get(LAYER_IDS) if case.draft else None
    if case.target.facts is not None and isinstance(ids, list):
        check_layers("model", ids, case.target)
    return ()


def _checkpoint(target: Mapping[str, Any], tokens: int) -> dict[str, Any]:
    vocab = target["vocab_size"]
    own = OWN_WORDS if vocab > 2 * OWN_WORDS else vocab // 4
    return {**one_layer(target), "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": own}


def _three_streams(hidden: int, values: int) -> int:
    """Three streams are joined, and queries, keys and values of the first layer read twice the width."""
    return hidden * (3 * hidden + hidden + values)


IN_ONE_PASS = {"parallel_drafting": True}  # P-EAGLE

EAGLE3 = Method(
    name="eagle3",
    help="A trained head over three of the target's layers (P-EAGLE with parallel_drafting).",
    drafter="augury.drafters.eagle3:Eagle3Drafter",
    keys=(*HEAD_KEYS, "parallel_drafting"),
    weights="draft",
    features="auxiliary",
    signs=Signs(
        speculators={
            "eagle3": SpeculatorType(),
            "peagle": SpeculatorType({"parallel_drafting": True}, "a P-EAGLE head"),
        },
        architectures=("Eagle3", "Peagle", "PEagle"),
        fields=("draft_vocab_size", LAYER_IDS),
        names=("eagle3",),
    ),
    default_tokens=predict_depth,
    check_tokens=multiple_of_depth,
    check=_fits,
    own_context=False,
    extra_slots=all_but_first,
    lookahead=1,
    prefill_lookahead=1,
    vllm_since="0.8.5",
    vllm_tells_tokens=True,
    divided=True,
    band=measured(
        2.2,
        2.7,
        3.2,
        3,
        "8B to 120B targets, chat",
        "vLLM's acceptance tests and operators' reports",
        "chat",
        (0.73, 0.52, 0.35),
    ),
    vllm_prefix="Eagle3",
    vllm_classes={
        "Eagle3LlamaForCausalLM": ("0.8.5", None),
        "LlamaForCausalLMEagle3": ("0.10.2", None),
        "Eagle3Qwen2_5vlForCausalLM": ("0.11.1", None),
        "Eagle3Qwen3vlForCausalLM": ("0.12", None),
        "Eagle3DeepseekV2ForCausalLM": ("0.18", None),
        "Eagle3DeepseekV3ForCausalLM": ("0.18", None),
        "Eagle3MiniMaxM2ForCausalLM": ("0.20", None),
        "PEagleDraftModel": ("0.22", None),
        "PeagleLlamaForCausalLM": ("0.22", None),
        "Eagle3Qwen3ForCausalLM": ("0.24", None),
        "PeagleQwen3ForCausalLM": ("0.24", None),
    },
    usual=UsualHead(joins=_three_streams, stated=False, vocabulary=OWN_WORDS),
    checkpoint=_checkpoint,
    gates={
        "eagle3": GateRecipe("augury.train.eagle:train_eagle3", 120),
        "p-eagle": GateRecipe("augury.train.eagle:train_p_eagle", 120, settings=IN_ONE_PASS),
    },
    trained={
        "eagle3": Trained(PAIRS, "augury.train.eagle:Eagle3", speculator=("eagle3", "Eagle3DraftModel")),
        "p-eagle": Trained(PAIRS, "augury.train.eagle:PEagle", IN_ONE_PASS, ("peagle", "PEagleDraftModel")),
    },
    prose=("eagle-3",),
)
