"""transformers' configuration classes, imported without the rest of transformers.

A configuration class imports the table of activations to check one name by it, and with the table come torch._dynamo
and torch.distributed: a quarter of the time in which an engine starts. Where transformers finds no torch it omits this
check, so torch is hidden while that one module is imported. An unknown activation is still
refused: our layers take silu alone, and every other model is run by transformers, which looks its activation up.

transformers also reads all its model files for their names, once when it is imported and again with its first model: a
second of CPU time. The second list is the part of the first below `models`, and is taken from it.
"""

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

MODELS = "transformers.models"
CHECKS = "transformers.utils.type_validators"
BEFORE = ("transformers.tokenization_utils_base", "transformers.video_utils", "transformers.image_utils")


@cache
def import_lightly() -> None:
    """Call before a configuration class is imported; changes nothing if one was already, or if torch was not."""
    list_models_once()
    torch: Any = sys.modules.get("torch")
    if torch is None or CHECKS in sys.modules:
        return
    try:
        for name in BEFORE:  # these look for torch too, and must find it
            import_module(name)
        asked: Any = import_module("transformers.utils.import_utils")
        with patch.object(asked, "is_torch_available", lambda: False):
            checks: Any = import_module(CHECKS)
    except ImportError:  # another release of transformers, with other modules: its import is slow, and works
        return
    checks.torch, checks.is_torch_available = torch, asked.is_torch_available


def list_models_once() -> None:
    """Import transformers.models with the list of names that transformers has already built; call before its import.

    Where transformers has not cached that list, it is built here, as it would be without this function.
    """
    if MODELS in sys.modules:
        return
    try:
        listing: Any = import_module("transformers.utils.import_utils")
        folder = Path(listing.__file__).parents[1] / "models"
        known = listing.define_import_structure(folder, prefix="models")
        own = {needs: _below(modules) for needs, modules in known.items()}
        original = listing.define_import_structure
        with patch.object(listing, "define_import_structure", lambda path, prefix=None: own):
            models: Any = import_module(MODELS)
        models.define_import_structure = original
    except (AttributeError, ImportError, TypeError):  # another release of transformers: its import is slow, and works
        return


def _below(modules: dict[str, set[str]]) -> dict[str, set[str]]:
    prefix = "models."
    return {name[len(prefix) :]: names for name, names in modules.items() if name.startswith(prefix)}


def auto_config() -> Any:
    """transformers' AutoConfig."""
    import_lightly()
    from transformers import AutoConfig

    return AutoConfig
