"""Augury: speculative decoding that speaks vLLM's language.

    from augury import LLM, SamplingParams

Names are loaded on first use, so that `import augury` and the operator's commands never pay for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from augury.kernels.threads import wait_quietly
from augury.observe.collection import uncollected

if TYPE_CHECKING:
    from augury.config.lora import LoRARequest
    from augury.config.sampling import SamplingParams
    from augury.config.structured import StructuredOutputsParams
    from augury.engine.llm import LLM
    from augury.engine.outputs import CompletionOutput, RequestOutput

__version__ = "0.1.0"
__all__ = [
    "LLM",
    "CompletionOutput",
    "LoRARequest",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutputsParams",
    "__version__",
]

wait_quietly()  # before anything imports torch, which reads this once

_HOMES = {
    "LLM": "augury.engine.llm",
    "LoRARequest": "augury.config.lora",
    "SamplingParams": "augury.config.sampling",
    "StructuredOutputsParams": "augury.config.structured",
    "RequestOutput": "augury.engine.outputs",
    "CompletionOutput": "augury.engine.outputs",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'augury' has no attribute {name!r}")
    with uncollected(lasting=True):
        return getattr(import_module(_HOMES[name]), name)
