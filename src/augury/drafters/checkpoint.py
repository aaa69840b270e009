"""Where a drafter's own checkpoint lies."""

from __future__ import annotations

from pathlib import Path

from augury.config.speculative import SpeculativeConfig
from augury.model.store import resolve


def find_drafter(config: SpeculativeConfig, dummy: bool = False) -> Path:
    """The local directory of a drafter's checkpoint, downloaded at its revision if need be.

    A head may come as a pickle of nothing but tensors; a draft model is a whole model and loads as a target does.
    A `dummy` needs a config.json and nothing else.
    """
    assert config.model is not None
    return resolve(config.model, revision=config.revision, pickles=config.method != "draft_model", weights=not dummy)
