"""`eagle3`, and P-EAGLE with parallel_drafting: see recurrent.py."""

from __future__ import annotations

from augury.config.speculative import SpeculativeConfig
from augury.drafters.base import DrafterSetup
from augury.drafters.checkpoint import find_drafter
from augury.drafters.recurrent import RecurrentDrafter
from augury.model.heads.eagle3 import Eagle3Head
from augury.model.heads.probe import settle_eagle3
from augury.model.load import choose_head_dtype


class Eagle3Drafter(RecurrentDrafter):
    """Reads several of the target's layers."""

    name = "eagle3"

    def __init__(self, config: SpeculativeConfig, setup: DrafterSetup) -> None:
        """Load the head."""
        dtype = choose_head_dtype(setup.dtype, setup.target)
        head = Eagle3Head.load(find_drafter(config, setup.dummy), setup.target, dtype, setup.max_model_len, setup.dummy)
        if not setup.dummy:  # random weights guess nothing under any reading
            settle_eagle3(head, setup.directory, setup.max_model_len)
        super().__init__(config, setup, head)
