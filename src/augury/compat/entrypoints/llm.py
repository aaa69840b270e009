"""vllm.entrypoints.llm."""

from augury.engine.llm import LLM

__all__ = ["LLM"]
