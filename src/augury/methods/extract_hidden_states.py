"""The card of `extract_hidden_states`."""

from augury.methods.spec import Facts, Inferred, Method


def _exactly_one(tokens: int, facts: Facts) -> str | None:
    return "must be 1: the method drafts nothing, it only saves hidden states; write 1" if tokens != 1 else None


def _one(facts: Facts) -> Inferred:
    return 1, "the method: it drafts nothing"


EXTRACT_HIDDEN_STATES = Method(
    name="extract_hidden_states",
    help="Drafts nothing; saves the target's hidden states to files, to train drafters on.",
    drafter="augury.propose.extract_hidden_states:HiddenStatesDrafter",
    keys=("draft_model_config", "disable_padded_drafter_batch"),
    features="auxiliary",
    default_tokens=_one,
    check_tokens=_exactly_one,
    vllm_since="0.17",
)
