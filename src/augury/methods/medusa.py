"""The card of `medusa`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from augury.methods.bands import measured
from augury.methods.fits import same_width
from augury.methods.spec import TREE_KEYS, WEIGHT_KEYS, Case, GateRecipe, Inferred, Method, Signs, Trained, whole

HEAD_COUNTS = ("num_heads", "medusa_num_heads", "num_lookahead_tokens")


def _heads(case: Case) -> Inferred | None:
    for name in HEAD_COUNTS:
        count = whole(case.stated.get(name))
        if count:
            return count, f"the checkpoint's {name}"
    return None


def _enough_heads(tokens: int, case: Case) -> str | None:
    # medusa_num_heads is no bound: published checkpoints state 2 and hold 5.
    count = whole(case.stated.get("num_heads"))
    if count and tokens > count:
        return f"must be at most the checkpoint's {count} heads; write {count}"
    return None


def _checkpoint(target: Mapping[str, Any], tokens: int) -> dict[str, Any]:
    sizes = {name: target[name] for name in ("hidden_size", "vocab_size")}
    return {"model_type": "medusa", "medusa_num_heads": tokens, "medusa_num_layers": 1, **sizes}


MEDUSA = Method(
    name="medusa",
    help="Extra heads on the target's last hidden state, each guessing one token further ahead.",
    drafter="augury.drafters.medusa:MedusaDrafter",
    keys=(*WEIGHT_KEYS, *TREE_KEYS),
    weights="draft",
    features="last",
    signs=Signs(model_types=("medusa",), architectures=("Medusa",), fields=("medusa_num_heads",)),
    default_tokens=_heads,
    check_tokens=_enough_heads,
    check=same_width,
    vllm_old_runner=True,
    vllm_async=False,
    vllm_fixed_tokens=True,
    vllm_classes={"MedusaModel": ("0.8.2", None)},
    vllm_writes={"model_type": "medusa"},
    divided=True,
    band=measured(1.4, 1.68, 1.8, 3, "heads run as a chain, chat", "operators' reports", "chat"),
    one_pass=True,
    checkpoint=_checkpoint,
    gates={"medusa": GateRecipe("augury.train.medusa:train_medusa", 80)},
    published="vLLM reads them as they are",
    trained={"medusa": Trained("augury.train.heads_trainee:MedusaTrainee", layers="residual")},
)
