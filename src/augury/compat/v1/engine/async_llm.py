"""vllm.v1.engine.async_llm."""

from augury.compat.engine.async_llm_engine import AsyncLLM

__all__ = ["AsyncLLM"]
