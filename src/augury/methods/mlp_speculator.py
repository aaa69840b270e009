"""The card of `mlp_speculator`."""

from augury.methods.lengths import multiple_of_depth, predict_depth
from augury.methods.spec import TREE_KEYS, WEIGHT_KEYS, Method

MLP_SPECULATOR = Method(
    name="mlp_speculator",
    help="A small recurrent head that mixes the last hidden state with each guessed token in turn.",
    drafter="augury.propose.mlp_speculator:MLPSpeculatorDrafter",
    keys=(*WEIGHT_KEYS, *TREE_KEYS),
    weights="draft",
    features="last",
    default_tokens=predict_depth,
    check_tokens=multiple_of_depth,
    vllm_until="0.10",
    vllm_async=False,
)
