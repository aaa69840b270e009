"""The card of `extract_hidden_states`."""

from collections.abc import Mapping

from augury.methods.errors import ConfigError
from augury.methods.fits import LAYER_IDS, check_layers
from augury.methods.notes import Note
from augury.methods.spec import Case, Inferred, Method


def _exactly_one(tokens: int, case: Case) -> str | None:
    return "must be 1: the method drafts nothing, it only saves hidden states; write 1" if tokens != 1 else None


def _one(case: Case) -> Inferred:
    return 1, "the method: it drafts nothing"


def _layers(case: Case) -> tuple[Note, ...]:
    inner = (case.keys.get("draft_model_config") or {}).get("hf_config")
    ids = inner.get(LAYER_IDS) if isinstance(inner, Mapping) else None
    if not isinstance(ids, list) or not ids or not all(isinstance(i, int) for i in ids):
        raise ConfigError(
            "speculative_config.draft_model_config must name the layers to save; write for example "
            '{"hf_config": {"eagle_aux_hidden_state_layer_ids": [2, 18, 34]}}.'
        )
    check_layers("draft_model_config", ids, case.target)
    return ()


EXTRACT_HIDDEN_STATES = Method(
    name="extract_hidden_states",
    help="Drafts nothing; saves the target's hidden states to files, to train drafters on.",
    drafter="augury.drafters.extract_hidden_states:HiddenStatesDrafter",
    keys=("draft_model_config", "disable_padded_drafter_batch"),
    features="auxiliary",
    default_tokens=_one,
    check_tokens=_exactly_one,
    check=_layers,
    saves_states=True,
    vllm_since="0.17",
    vllm_fixed_tokens=True,
)
