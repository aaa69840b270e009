"""The card of `draft_model`."""

from __future__ import annotations

from augury.methods.bands import measured
from augury.methods.errors import problem
from augury.methods.facts import ModelFacts
from augury.methods.lengths import multiple_of_depth, predict_depth
from augury.methods.notes import Note
from augury.methods.spec import MODEL_KEYS, PADDED_KEYS, Case, GateRecipe, Method, Trained

FAMILY = "take a drafter of the target's family, or set use_heterogeneous_vocab"


def _slots(tokens: int, parallel: bool) -> int:
    return tokens if parallel else 1  # inputs are not shifted, so the new token needs a row; PARD adds its masks


def _same_vocabulary(case: Case) -> tuple[Note, ...]:
    target, draft = case.target.facts, case.draft
    if target is None or draft is None or case.keys.get("use_heterogeneous_vocab"):
        return ()
    ours, theirs = draft.vocab_size, target.vocab_size
    if ours is None or theirs is None:
        return ()
    same = _same_tokens(target, draft)
    if ours == theirs and same is False:
        says = f"has a different tokenizer from the target, although its vocabulary is the same size; {FAMILY}"
        raise problem("model", draft.name, says)
    if ours == theirs:
        return ()
    if not same:
        says = f"must have the same vocabulary size as the target: {ours} against {theirs}; {FAMILY}"
        raise problem("model", draft.name, says)
    padded = f"the drafter's {ours} and the target's {theirs} tokens differ by padding alone; vLLM refuses that."
    return (Note("vllm", "model", padded, refused=True),)


def _same_tokens(target: ModelFacts, draft: ModelFacts) -> bool | None:
    """Whether both tokenizers number tokens alike, so that sizes differ by padding alone; None: they cannot be read."""
    ours, theirs = draft.tokens, target.tokens
    if not ours or not theirs:
        return None
    return ours == theirs and max(ours.values()) < (draft.vocab_size or 0)


DRAFT_MODEL = Method(
    name="draft_model",
    help="A small language model with the target's vocabulary writes the draft (PARD with parallel_drafting).",
    drafter="augury.drafters.draft_model:ModelDrafter",
    keys=(*MODEL_KEYS, *PADDED_KEYS, "parallel_drafting", "use_heterogeneous_vocab"),
    weights="draft",
    default_tokens=predict_depth,
    check_tokens=multiple_of_depth,
    check=_same_vocabulary,
    extra_slots=_slots,
    lookahead=1,
    vllm_gap=("0.10", "0.15"),
    vllm_new_runner=("0.29", "0.32"),
    vllm_async_since="0.28",
    vllm_tells_tokens=True,
    vllm_lacks=("disable_padded_drafter_batch",),
    divided=True,
    band=measured(2.2, 3.0, 3.5, 4, "same family, well matched", "operators' reports"),
    sharded=True,
    prose=("small models of the family",),
    gates={"draft_model": GateRecipe("augury.train.draft_model:train_draft_model", 80)},
    published="they are models, which servers load as any other",
    trained={
        "draft_model": Trained("augury.train.draft_model_trainee:DraftModelTrainee", layers="the target's"),
        "pard": Trained(
            "augury.train.pard_trainee:PardTrainee", settings={"parallel_drafting": True}, layers="the target's"
        ),
    },
)
