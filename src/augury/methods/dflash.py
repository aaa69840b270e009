"""The card of `dflash`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from augury.methods.bands import measured
from augury.methods.facts import architectures
from augury.methods.fits import one_layer, same_width
from augury.methods.spec import (
    HEAD_KEYS,
    Case,
    GateRecipe,
    Inferred,
    Method,
    Signs,
    SpeculatorType,
    Trained,
    UsualHead,
    whole,
)

LAYERS = 5  # of a published drafter


def _block(case: Case) -> int | None:
    stated = case.stated
    inner = stated.get("dflash_config")
    size = whole(stated.get("block_size")) or whole(inner.get("block_size") if isinstance(inner, dict) else None)
    return size if size and size > 1 else None


def _block_less_one(case: Case) -> Inferred | None:
    size = _block(case)
    return (size - 1, f"the checkpoint's block_size of {size}, less the known token") if size else None


def _within_block(tokens: int, case: Case) -> str | None:
    size = _block(case)
    if size and tokens > size:
        return f"must be at most the checkpoint's block_size of {size}; write {size - 1}"
    return None


def _slots(tokens: int, parallel: bool) -> int:
    return tokens


def _checkpoint(target: Mapping[str, Any], tokens: int) -> dict[str, Any]:
    kind = {"model_type": "qwen3", "architectures": ["DFlashDraftModel"], "block_size": tokens + 1}
    layers = min(LAYERS, target["num_hidden_layers"] - 3)
    masks = {"mask_token_id": target["vocab_size"] - 1}
    return {**one_layer(target), **kind, "num_hidden_layers": layers, "dflash_config": masks}


def _named_otherwise(draft: Mapping[str, Any]) -> bool:
    return "MuseGlimmerAssistantModel" in architectures(draft)


DFLASH = Method(
    name="dflash",
    help="Fills a whole block of masked positions in one pass over several of the target's layers.",
    drafter="augury.drafters.dflash:DFlashDrafter",
    keys=(*HEAD_KEYS, "parallel_drafting"),
    weights="draft",
    features="auxiliary",
    signs=Signs(
        speculators={"dflash": SpeculatorType(), "dflash2": SpeculatorType()},
        architectures=("DFlash", "LiLiCorr", "MuseGlimmerAssistant"),
        fields=("dflash_config",),
        names=("dflash",),
    ),
    default_tokens=_block_less_one,
    check_tokens=_within_block,
    check=same_width,
    always_parallel=True,
    extra_slots=_slots,
    lookahead=2,
    prefill_lookahead=1,
    vllm_since="0.20",
    vllm_checks_tokens=False,
    vllm_detects=_named_otherwise,
    band=measured(3.0, 4.0, 5.0, 15, "Qwen3-8B on B200, batch 1, code, maths and chat", "vLLM #36847"),
    vllm_prefix="DFlash",
    vllm_kept=("LiLiCorrDraftModel",),
    vllm_classes={
        "DFlashDraftModel": ("0.20", None),
        "DFlashLagunaForCausalLM": ("0.25", None),
        "DFlash2DraftModel": ("0.28", None),
        "DFlashMuseGlimmerAssistantModel": ("0.28", None),
    },
    one_pass=True,
    usual=UsualHead(layers=LAYERS),
    checkpoint=_checkpoint,
    gates={
        "dflash": GateRecipe("augury.train.dflash:train_dflash", 200, rate=2e-3),
        "dflash2": GateRecipe("augury.train.dflash2:train_dflash2", 200, rate=2e-3),
    },
    trained={
        "dflash": Trained(
            "augury.train.dflash_trainee:DFlashTrainee", speculator=("dflash", "DFlashDraftModel"), layers="its own"
        )
    },
)
