"""transformers' configuration classes, imported without the rest of transformers.

A configuration class imports the table of activations to check one name by it, and with the table come torch._dynamo
and torch.distributed: a quarter of the time in which an engine starts. Where transformers finds no torch it omits this
check, so it is told that there is none while that one module is imported. An activation that nobody knows is still
refused: our layers take silu alone, and every other model is run by transformers, which looks its activation up.
"""

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module
from typing import Any
from unittest.mock import patch

CHECKS = "transformers.utils.type_validators"
BEFORE = ("transformers.tokenization_utils_base", "transformers.video_utils", "transformers.image_utils")


@cache
def import_lightly() -> None:
    """To be called before a configuration class is imported; changes nothing where one was, or where torch is not."""
    torch: Any = sys.modules.get("torch")
    if torch is None or CHECKS in sys.modules:
        return
    try:
        for name in BEFORE:  # these ask for torch too, and shall find it
            import_module(name)
        asked: Any = import_module("transformers.utils.import_utils")
        with patch.object(asked, "is_torch_available", lambda: False):
            checks: Any = import_module(CHECKS)
    except ImportError:  # another release of transformers, with other modules: it takes its time, and works
        return
    checks.torch, checks.is_torch_available = torch, asked.is_torch_available


def auto_config() -> Any:
    """transformers' AutoConfig."""
    import_lightly()
    from transformers import AutoConfig

    return AutoConfig
