"""The card of `eagle3`."""

from augury.methods.eagle import EAGLE_KEYS
from augury.methods.lengths import all_but_first, multiple_of_depth, predict_depth
from augury.methods.spec import Band, Method

EAGLE3 = Method(
    name="eagle3",
    help="A trained head over three of the target's layers (P-EAGLE with parallel_drafting).",
    drafter="augury.propose.eagle3:Eagle3Drafter",
    keys=(*EAGLE_KEYS, "parallel_drafting"),
    weights="draft",
    features="auxiliary",
    default_tokens=predict_depth,
    check_tokens=multiple_of_depth,
    extra_slots=all_but_first,
    lookahead=1,
    prefill_lookahead=1,
    vllm_since="0.8.5",
    band=Band((0.75, 0.92), (3.0, 4.0), "chat, K=3"),
)
