"""`mtp`: see recurrent.py."""

from __future__ import annotations

from augury.config.speculative import SpeculativeConfig
from augury.drafters.base import DrafterSetup
from augury.drafters.checkpoint import find_drafter
from augury.drafters.recurrent import RecurrentDrafter
from augury.model.heads.mtp import MtpHead
from augury.model.load import choose_head_dtype


class MtpDrafter(RecurrentDrafter):
    """Runs the target's own extra layer, again and again where more tokens are asked for than it was trained for."""

    name = "mtp"

    def __init__(self, config: SpeculativeConfig, setup: DrafterSetup) -> None:
        """Take the layer out of the target's files, or out of a checkpoint of its own."""
        directory = find_drafter(config, setup.dummy) if config.model else setup.directory
        dtype = choose_head_dtype(setup.dtype, setup.target)
        head = MtpHead.load(directory, setup.target, dtype, setup.max_model_len, setup.dummy)
        super().__init__(config, setup, head)
