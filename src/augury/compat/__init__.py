"""vLLM's module paths over this engine: `from augury.compat.sampling_params import SamplingParams`.

`python -m augury.compat script.py` runs a script that imports `vllm`, unchanged. docs/compat.md says what is there.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from augury.compat.engine.arg_utils import AsyncEngineArgs, EngineArgs
    from augury.compat.engine.async_llm_engine import AsyncLLMEngine
    from augury.compat.engine.llm_engine import LLMEngine
    from augury.compat.inputs import TextPrompt, TokensPrompt
    from augury.config.sampling import SamplingParams
    from augury.engine.llm import LLM
    from augury.engine.outputs import CompletionOutput, RequestOutput

__all__ = [
    "LLM",
    "AsyncEngineArgs",
    "AsyncLLMEngine",
    "CompletionOutput",
    "EngineArgs",
    "LLMEngine",
    "RequestOutput",
    "SamplingParams",
    "TextPrompt",
    "TokensPrompt",
]

_HOMES = {
    "LLM": "augury.engine.llm",
    "SamplingParams": "augury.config.sampling",
    "RequestOutput": "augury.engine.outputs",
    "CompletionOutput": "augury.engine.outputs",
    "EngineArgs": "augury.compat.engine.arg_utils",
    "AsyncEngineArgs": "augury.compat.engine.arg_utils",
    "LLMEngine": "augury.compat.engine.llm_engine",
    "AsyncLLMEngine": "augury.compat.engine.async_llm_engine",
    "TextPrompt": "augury.compat.inputs",
    "TokensPrompt": "augury.compat.inputs",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("augury").__version__
    if name not in _HOMES:
        raise AttributeError(f"module 'augury.compat' has no attribute {name!r}; docs/compat.md lists what there is")
    return getattr(import_module(_HOMES[name]), name)
