"""The card of `ngram_gpu`."""

from augury.methods.ngram import LOOK_UP, LOOKUP_BAND, LOOKUP_KEYS, NGRAM, bounds
from augury.methods.spec import Method

NGRAM_GPU = Method(
    name="ngram_gpu",
    help="The n-gram lookup done on the device with tensors, so that drafting never waits for the host.",
    drafter="augury.drafters.ngram_gpu:NgramGpuDrafter",
    keys=LOOKUP_KEYS,
    settle=bounds,
    vllm_since="0.18",
    vllm_new_runner=("0.29", "0.32"),
    vllm_fixed_tokens=True,
    band=LOOKUP_BAND,
    look_up=LOOK_UP._replace(starts=LOOK_UP.starts[:1], twin_of=NGRAM.name),
)
