"""The card of `mlp_speculator`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from augury.methods.errors import problem
from augury.methods.lengths import once_through, predict_depth
from augury.methods.notes import Note
from augury.methods.spec import TREE_KEYS, WEIGHT_KEYS, Case, GateRecipe, Method, Signs, SpeculatorType, Trained


def _fits(case: Case) -> tuple[Note, ...]:
    target, draft = case.target.facts, case.draft
    width = draft.number("emb_dim") if draft else None
    if target is not None and draft is not None and width not in (None, target.hidden_size):
        raise problem("model", draft.name, f"reads states of width {width}, the target has {target.hidden_size}")
    if (case.target.tensor_parallel_size or 1) > 1:
        return (Note("warning", "draft_tensor_parallel_size", "an MLP speculator runs unsharded: taken as 1."),)
    return ()


def _checkpoint(target: Mapping[str, Any], tokens: int) -> dict[str, Any]:
    width, vocab = target["hidden_size"], target["vocab_size"]
    sizes = {"emb_dim": width, "inner_dim": width, "vocab_size": vocab}
    return {"model_type": "mlp_speculator", "n_predict": tokens, **sizes}


MLP_SPECULATOR = Method(
    name="mlp_speculator",
    help="A small recurrent head that mixes the last hidden state with each guessed token in turn.",
    drafter="augury.drafters.mlp_speculator:MLPSpeculatorDrafter",
    keys=(*WEIGHT_KEYS, *TREE_KEYS),
    weights="draft",
    features="last",
    signs=Signs(speculators={"mlp_speculator": SpeculatorType(nested=False)}, architectures=("MLPSpeculator",)),
    default_tokens=predict_depth,
    check_tokens=once_through,
    check=_fits,
    vllm_until="0.10",
    vllm_async=False,
    vllm_tells_tokens=True,
    vllm_classes={"MLPSpeculatorPreTrainedModel": ("0.8.2", "0.10")},
    one_pass=True,
    checkpoint=_checkpoint,
    gates={"mlp_speculator": GateRecipe("augury.train.mlp_speculator:train_mlp_speculator", 80, rate=3e-3)},
    published="vLLM reads them as they are, but for those with words of their own (d2t)",
    trained={"mlp_speculator": Trained("augury.train.heads_trainee:MLPTrainee")},
)
