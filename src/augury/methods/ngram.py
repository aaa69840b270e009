"""The card of `ngram`."""

from augury.methods.spec import Band, Method

LOOKUP_KEYS = ("prompt_lookup_max", "prompt_lookup_min", "prompt_lookup_match")

NGRAM = Method(
    name="ngram",
    help="Looks up the last few tokens earlier in the request and guesses that what followed then follows now.",
    drafter="augury.propose.ngram:NgramDrafter",
    keys=LOOKUP_KEYS,
    vllm_async=False,
    band=Band((0.30, 0.60), (1.1, 2.5), "1.5-2.5 on code, 1.1-1.3 in chat"),
)
