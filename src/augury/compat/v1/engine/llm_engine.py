"""vllm.v1.engine.llm_engine."""

from augury.compat.engine.llm_engine import LLMEngine

__all__ = ["LLMEngine"]
