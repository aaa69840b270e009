"""`eagle`: see recurrent.py."""

from __future__ import annotations

from augury.config.speculative import SpeculativeConfig
from augury.drafters.base import Setting
from augury.drafters.checkpoint import find_drafter
from augury.drafters.recurrent import RecurrentDrafter
from augury.model.heads.eagle import EagleHead
from augury.model.load import choose_head_dtype


class EagleDrafter(RecurrentDrafter):
    """Continues the target's last hidden state."""

    name = "eagle"

    def __init__(self, config: SpeculativeConfig, setting: Setting) -> None:
        """Load the head."""
        dtype = choose_head_dtype(setting.dtype, setting.target)
        head = EagleHead.load(
            find_drafter(config, setting.dummy), setting.target, dtype, setting.max_model_len, setting.dummy
        )
        super().__init__(config, setting, head)
