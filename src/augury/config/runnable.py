"""What this engine can run of a valid configuration; the rest is refused by name, never quietly dropped."""

from __future__ import annotations

from augury.config.errors import ConfigError
from augury.config.speculative import SpeculativeConfig
from augury.methods.spec import MAX_NODES


def check_runnable(config: SpeculativeConfig, ranks: int = 1) -> None:
    """Raise a ConfigError of one line if the configuration cannot run here, on this many ranks."""
    card = config.card
    if card.inside and config.model is None:
        raise ConfigError(f"speculative_config.model is missing: {card.inside}; name a drafter of its own.")
    # Heads that might seem to draft from masks, but were never trained on them.
    if config.parallel_drafting and card.continues_target and "parallel_drafting" not in card.keys:
        raise ConfigError(
            f"speculative_config.parallel_drafting=True does not go with method={config.method!r}, which drafts "
            "token by token; remove it, or write method='eagle3' if the head is a P-EAGLE one."
        )
    if config.parallel_drafting and config.drafts_trees and card.masks:
        raise ConfigError(
            "speculative_config.parallel_drafting drafts a chain from masks, and a tree was asked for too; remove one."
        )
    if max(config.num_speculative_tokens, config.max_nodes) > MAX_NODES:
        raise ConfigError(
            f"speculative_config.num_speculative_tokens={config.num_speculative_tokens} is more than is drafted at "
            f"once here; write {MAX_NODES} or less."
        )
    grown = config.drafts_trees and card.lookahead > 0  # level by level, by a model
    if config.tree and grown and (config.num_speculative_tokens - 1) * config.tree.top_k > MAX_NODES:
        raise ConfigError(
            f"speculative_config.tree.top_k={config.tree.top_k} with num_speculative_tokens="
            f"{config.num_speculative_tokens} grows too wide: (K - 1) * top_k must be at most {MAX_NODES}; lower one."
        )
    _check_divided(config, ranks)


def _check_divided(config: SpeculativeConfig, ranks: int) -> None:
    size = config.draft_tensor_parallel_size
    if not config.card.has_weights or size in (None, 1):
        return
    if size != ranks:
        raise ConfigError(
            f"speculative_config.draft_tensor_parallel_size={size}: this engine has tensor_parallel_size={ranks}; "
            f"write {'1' if ranks == 1 else f'1 or {ranks}'} or leave it out."
        )
    if not config.card.divided:
        raise ConfigError(
            f"speculative_config.draft_tensor_parallel_size={size}: drafters of method={config.method!r} are whole on "
            "every rank; write 1 or leave it out."
        )
