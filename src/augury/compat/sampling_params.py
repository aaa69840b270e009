"""vllm.sampling_params."""

from augury.config.sampling import RequestOutputKind, SamplingParams
from augury.config.structured import StructuredOutputsParams

__all__ = ["RequestOutputKind", "SamplingParams", "StructuredOutputsParams"]
