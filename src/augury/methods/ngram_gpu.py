"""The card of `ngram_gpu`."""

from augury.methods.ngram import LOOKUP_KEYS
from augury.methods.spec import Band, Method

NGRAM_GPU = Method(
    name="ngram_gpu",
    help="The n-gram lookup done on the device with tensors, so that drafting never waits for the host.",
    drafter="augury.propose.ngram_gpu:NgramGpuDrafter",
    keys=LOOKUP_KEYS,
    vllm_since="0.18",
    band=Band((0.30, 0.60), (1.1, 2.5), "1.5-2.5 on code, 1.1-1.3 in chat"),
)
