"""vllm.lora.request."""

from augury.config.lora import LoRARequest

__all__ = ["LoRARequest"]
