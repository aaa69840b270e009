"""The card of `eagle`."""

from augury.methods.lengths import all_but_first, multiple_of_depth, predict_depth
from augury.methods.spec import BLOCK_DROP_KEYS, PADDED_KEYS, SAMPLED_KEYS, TREE_KEYS, WEIGHT_KEYS, Method

EAGLE_KEYS = (*WEIGHT_KEYS, *SAMPLED_KEYS, *TREE_KEYS, *PADDED_KEYS, *BLOCK_DROP_KEYS)

EAGLE = Method(
    name="eagle",
    help="One decoder layer that continues the target's last hidden state, token by token.",
    drafter="augury.propose.eagle:EagleDrafter",
    keys=EAGLE_KEYS,
    weights="draft",
    features="last",
    default_tokens=predict_depth,
    check_tokens=multiple_of_depth,
    extra_slots=all_but_first,
    lookahead=1,
    prefill_lookahead=1,
)
