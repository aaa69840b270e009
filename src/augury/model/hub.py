"""Checkpoints from the Hugging Face hub: which of their files are fetched."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from augury.model.errors import ModelError
from augury.model.weight_files import MASK_FILE, has_weights

FORMS = "give 'default', a .gguf file, a directory with config.json, or a Hugging Face id such as owner/name"
FILES = ("*.json", "*.safetensors", "*.jinja", "tokenizer.model", "merges.txt", "vocab.txt")  # never pickles
HEAD_FILES = (*FILES, MASK_FILE)
HEAD_PICKLES = (("medusa_lm_head.pt",), ("*.bin", "*.pt"))  # of heads without safetensors: the first that they have
IGNORED = ("*/*", "consolidated*.safetensors")  # other formats, and Mistral's second copy of the weights


def fetch(model: str, quiet: bool, revision: str | None, pickles: bool) -> Path:
    """Fetch a checkpoint, or find it in the hub library's own cache; with `pickles`, those if it has no safetensors."""
    rounds = (HEAD_FILES, *HEAD_PICKLES) if pickles else (FILES,)
    try:
        for patterns in rounds:
            path = _download(model, quiet, revision, patterns)
            if has_weights(path):
                break
    except ModuleNotFoundError:
        raise ModelError(f"{model}: fetching needs huggingface_hub; `pip install 'augury[engine]'`.") from None
    except Exception as error:  # the hub, its HTTP library and the network raise dozens of types
        reason = (str(error).strip().splitlines() or [""])[0].rstrip(".") or type(error).__name__
        where = f" at revision {revision!r}" if revision else ""
        raise ModelError(
            f"{model}: not a local path, and it cannot be fetched from the hub{where} ({reason}); {FORMS}."
        ) from error
    return path


def fetch_file(model: str, name: str) -> Path:
    """Fetch one file of a checkpoint, and nothing else of it."""
    try:
        from huggingface_hub import hf_hub_download

        return Path(hf_hub_download(model, name))
    except ModuleNotFoundError:
        raise ModelError(f"{model}: fetching needs huggingface_hub; `pip install 'augury[traces]'`.") from None
    except Exception as error:  # the hub, its HTTP library and the network raise dozens of types
        reason = (str(error).strip().splitlines() or [""])[0].rstrip(".") or type(error).__name__
        raise ModelError(
            f"{model}: not a local path, and its {name} cannot be fetched from the hub ({reason})."
        ) from error


def _download(model: str, quiet: bool, revision: str | None, patterns: tuple[str, ...]) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils.tqdm import tqdm

    class HubBar(tqdm):
        """The hub's progress bar, shown where ours are."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            silent = {"disable": True} if quiet or not sys.stderr.isatty() else {}
            super().__init__(*args, **kwargs | silent)

    path = snapshot_download(
        model, revision=revision, allow_patterns=list(patterns), ignore_patterns=list(IGNORED), tqdm_class=HubBar
    )
    return Path(path)
