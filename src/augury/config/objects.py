"""Keys of speculative_config that are objects of their own."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from augury.config.keys import key
from augury.methods.spec import MAX_NODES


class TreeConfig(BaseModel):
    """A draft tree grown best-first by path probability."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_nodes: int = key(MAX_NODES, "Most nodes a draft tree may have.", ge=1, le=MAX_NODES)
    top_k: int = key(4, "Most children a node may have.", ge=1, le=MAX_NODES)


class RejectionSampler(BaseModel):
    """vllm-ascend's two lossy switches."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    enable_block_verify: bool = key(False, "Judge the draft as a block (needs 3 tokens or more). Lossy.")
    enable_entropy_verify: bool = key(False, "Judge more mildly where the target is unsure. Lossy.")
    posterior_threshold: float = key(0.95, "Upper bound of the entropy threshold.", gt=0, le=1)
    posterior_alpha: float = key(0.4, "How strongly entropy lowers the threshold.", ge=0)
