"""The card of `ngram`."""

from augury.methods.spec import Method

NGRAM = Method(
    name="ngram",
    help="Looks up the last few tokens earlier in the request and guesses that what followed then follows now.",
    drafter="augury.propose.ngram:NgramDrafter",
    keys=("prompt_lookup_max", "prompt_lookup_min"),
)
