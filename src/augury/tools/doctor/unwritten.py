"""Methods that vLLM picks when none is written, as far as names or files tell."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from augury.config.facts import ModelFacts
from augury.config.versions import Version, version
from augury.methods.mlp_speculator import MLP_SPECULATOR as MLP
from augury.methods.mtp import ALIASES, ASSISTANT, MTP, NAMED_THERE
from augury.tools.knowledge.families import by_name

# Targets for which vLLM used their own layers when only K was given, and since when; from 0.11 the method is required.
OWN_LAYERS = {"deepseek_v3": "0.8.2", "mimo": "0.9", "ernie4_5_moe": "0.10.2", "qwen3_next": "0.10.2"}
ACCELERATOR = re.compile(r"(?i)-accelerator$")  # how published MLP speculators are named


def unwritten(keys: Mapping[str, Any], target: str | None, files: ModelFacts | None, release: Version) -> str | None:
    """The method vLLM picks when none is written: "" if it cannot be told from here, None if vLLM picks none either."""
    model = keys.get("model")
    if keys.get("method"):
        return None
    if isinstance(model, str) and ACCELERATOR.search(model):
        return MLP.name if MLP.vllm_until and release >= version(MLP.vllm_until) else ""
    if isinstance(model, str):
        return MTP.name if _is_assistant(model) and release >= version(ALIASES[ASSISTANT]) else None
    if "num_speculative_tokens" not in keys or release >= version(MTP.vllm_since):
        return None
    row = by_name(target) if target else None
    types = (files.raw.get("model_type"),) if files else row.types if row else ()
    if not types:
        return "" if row is None else None
    taken = any(kind in OWN_LAYERS and release >= version(OWN_LAYERS[kind]) for kind in types)
    if not taken:
        return None
    return NAMED_THERE if release >= version(ALIASES[NAMED_THERE]) else ""


def _is_assistant(model: str) -> bool:
    row = by_name(model)
    return "-assistant" in model.lower() and row is not None and row.alias == ASSISTANT
