"""A head's layer with latent attention or experts: one layer of the target's own class, from transformers."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

from augury.kernels import choose
from augury.kernels.rows import Rows
from augury.model.adapter import Adapter
from augury.model.errors import ModelError
from augury.model.foreign import fix_rotary, quietly, refuse
from augury.model.foreign_attention import ATTENTION
from augury.model.row_invariant import use_row_invariant_matrices
from augury.model.target import KVCache, Target

FEW = 8  # tokens of a vocabulary that is never used


class ForeignBlocks:
    """A Stack of a layer run by transformers, as BlockLayers is of our own layers."""

    def __init__(self, adapter: Adapter, eps: float) -> None:
        self.ops, self.eps = choose(adapter.device), eps
        self.shapes = adapter.layer_shapes
        self._adapter = adapter

    @property
    def cache(self) -> KVCache:
        """Its keys and values."""
        return self._adapter.cache

    @cache.setter
    def cache(self, cache: KVCache) -> None:
        self._adapter.cache = cache

    def run(self, rows: Rows, first_input: Tensor | None, residual: Tensor, norm: Tensor) -> tuple[Tensor, Tensor]:
        """See Stack.run; the layer norms its input itself."""
        assert first_input is None
        stream = self._adapter.run(rows, residual)
        return self.ops.rms_norm(stream, norm, self.eps), stream

    def run_wanted(
        self, rows: Rows, first_input: Tensor | None, residual: Tensor, norm: Tensor
    ) -> tuple[Tensor, Tensor]:
        """See Stack.run_wanted."""
        final, out = self.run(rows, first_input, residual, norm)
        return final[rows.wanted], out[rows.wanted]

    def settle(self, target: Target) -> None:
        """Refuse to divide the layer among ranks: transformers' code runs it whole."""
        split = target.draft_split
        if split is None:
            return
        raise ModelError(f"{split.field}={split.ranks.size}: this drafter runs through transformers; write 1.")

    @classmethod
    def load(
        cls, config: Any, tensors: dict[str, Tensor], dtype: torch.dtype, device: torch.device, max_model_len: int
    ) -> ForeignBlocks:
        """A model of one layer from that layer's tensors by their published names (experts are fused on the way)."""
        lone = _lone_layer(config, sparse=any(".experts." in name for name in tensors))
        refuse(lone)
        size = config.hidden_size
        known = {f"model.layers.0.{name}": tensor for name, tensor in tensors.items()}
        spare = {"model.norm.weight": torch.ones(size), "model.embed_tokens.weight": torch.zeros(FEW, size)}
        model_class: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(lone)]
        with quietly():
            model, report = model_class.from_pretrained(
                None,
                config=lone,
                state_dict={**known, **spare, "lm_head.weight": torch.zeros(FEW, size)},
                dtype=dtype,
                attn_implementation=ATTENTION,
                output_loading_info=True,
            )
        faults = [f"{key}: {', '.join(map(str, sorted(report[key])))}" for key in FAULTS if report.get(key)]
        if faults:
            raise ModelError(f"the MTP layer does not fit a layer of {lone.model_type}; {'; '.join(faults)}")
        model = model.to(device).eval().requires_grad_(False)
        fix_rotary(model, lone, max_model_len)
        ops = choose(device)
        if device.type == "cpu":
            use_row_invariant_matrices(model, ops)
        return cls(Adapter(model, ops, max_model_len), config.rms_norm_eps)


FAULTS = ("missing_keys", "unexpected_keys", "mismatched_keys")


def _lone_layer(config: Any, sparse: bool) -> Any:
    """The target's configuration for a model that has just this layer, whatever its number was."""
    lone = copy.deepcopy(config)
    lone.num_hidden_layers, lone.vocab_size, lone.tie_word_embeddings = 1, FEW, False
    lone.pad_token_id = None
    for name, value in (
        ("first_k_dense_replace", 0 if sparse else 1),
        ("mlp_layer_types", ["sparse" if sparse else "dense"]),
        ("layer_types", ["full_attention"]),
        ("mlp_only_layers", [] if sparse else [0]),
        ("decoder_sparse_step", 1),
    ):
        if getattr(lone, name, None) is not None:
            setattr(lone, name, value)
    return lone
