"""Whether a drafter and a target belong together, and what a head made for a target looks like: what cards share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from augury.methods.errors import ConfigError, problem
from augury.methods.facts import TargetInfo
from augury.methods.notes import Note
from augury.methods.spec import Case

LAYER_IDS = "eagle_aux_hidden_state_layer_ids"


def same_width(case: Case) -> tuple[Note, ...]:
    """Refuse a head that was trained on hidden states of another width than the target's."""
    target, draft = case.target.facts, case.draft
    if target is None or draft is None:
        return ()
    expected = draft.number("target_hidden_size") or draft.hidden_size
    if expected and target.hidden_size != expected:
        raise problem(
            "model",
            draft.name,
            f"was trained on hidden size {expected}, the target has {target.hidden_size}: it belongs to another target",
        )
    return ()


def state_and_token(hidden: int, values: int) -> int:
    """Weights of the matrix that joins a hidden state and a token's embedding."""
    return 2 * hidden * hidden


def check_layers(key: str, ids: list[Any], target: TargetInfo) -> None:
    """Refuse layers that the target does not have."""
    layers = target.facts.layers if target.facts else None
    wrong = [i for i in ids if not isinstance(i, int) or i < 0 or (layers is not None and i > layers)]
    if wrong:
        limit = f"0 to {layers}" if layers is not None else "0 or more"
        raise ConfigError(f"speculative_config.{key}: layer ids {ids} must be {limit}; {wrong[0]} is not.")


def one_layer(target: Mapping[str, Any], tokens: int = 1) -> dict[str, Any]:
    """The config.json of a head that is one layer of a target's size."""
    llama = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
    return {**target, "num_hidden_layers": 1, "tie_word_embeddings": False, **llama}
