"""`eagle`: see recurrent.py."""

from __future__ import annotations

from augury.config.speculative import SpeculativeConfig
from augury.drafters.base import DrafterSetup
from augury.drafters.checkpoint import find_drafter
from augury.drafters.recurrent import RecurrentDrafter
from augury.model.heads.eagle import EagleHead
from augury.model.load import choose_head_dtype


class EagleDrafter(RecurrentDrafter):
    """Continues the target's last hidden state."""

    name = "eagle"

    def __init__(self, config: SpeculativeConfig, setup: DrafterSetup) -> None:
        """Load the head."""
        dtype = choose_head_dtype(setup.dtype, setup.target)
        head = EagleHead.load(find_drafter(config, setup.dummy), setup.target, dtype, setup.max_model_len, setup.dummy)
        super().__init__(config, setup, head)
