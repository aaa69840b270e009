"""`eagle3`, and P-EAGLE with parallel_drafting: see recurrent.py."""

from __future__ import annotations

from augury.config.speculative import SpeculativeConfig
from augury.drafters.base import Setting
from augury.drafters.checkpoint import find_drafter
from augury.drafters.recurrent import RecurrentDrafter
from augury.model.heads.eagle3 import Eagle3Head
from augury.model.heads.probe import settle_eagle3
from augury.model.load import choose_head_dtype


class Eagle3Drafter(RecurrentDrafter):
    """Reads several of the target's layers."""

    name = "eagle3"

    def __init__(self, config: SpeculativeConfig, setting: Setting) -> None:
        """Load the head."""
        dtype = choose_head_dtype(setting.dtype, setting.target)
        head = Eagle3Head.load(
            find_drafter(config, setting.dummy), setting.target, dtype, setting.max_model_len, setting.dummy
        )
        if not setting.dummy:  # random weights guess nothing under any reading
            settle_eagle3(head, setting.directory, setting.max_model_len)
        super().__init__(config, setting, head)
