"""vllm.lora."""
