"""The card of `draft_model`."""

from augury.methods.lengths import multiple_of_depth, predict_depth
from augury.methods.spec import PADDED_KEYS, SAMPLED_KEYS, TREE_KEYS, WEIGHT_KEYS, Band, Method


def _slots(tokens: int, parallel: bool) -> int:
    return tokens if parallel else 1  # inputs are not shifted, so the new token needs a row; PARD adds its masks


DRAFT_MODEL = Method(
    name="draft_model",
    help="A small language model with the target's vocabulary writes the draft (PARD with parallel_drafting).",
    drafter="augury.propose.draft_model:ModelDrafter",
    keys=(*WEIGHT_KEYS, *SAMPLED_KEYS, *TREE_KEYS, *PADDED_KEYS, "parallel_drafting", "use_heterogeneous_vocab"),
    weights="draft",
    default_tokens=predict_depth,
    check_tokens=multiple_of_depth,
    extra_slots=_slots,
    lookahead=1,
    vllm_gap=("0.10", "0.15"),
    band=Band((0.70, 0.85), (2.5, 3.5), "same family, well matched"),
)
