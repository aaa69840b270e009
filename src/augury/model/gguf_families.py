"""The GGUF architectures that can be converted, and what their tensors are called in transformers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class GGUFFamily:
    """What conversion must know about one GGUF architecture."""

    model_type: str
    class_name: str
    layer: dict[str, str]  # tensors of a layer: GGUF name -> transformers name
    biases: tuple[str, ...] = ()  # what `attention_bias` stands for
    always_biased: bool = False
    permuted: bool = False  # rows of Q and K are interleaved for llama.cpp's rotary kernel
    norm_offset: float = 0.0  # llama.cpp stores 1 + w where transformers keeps w
    extra: dict[str, Any] = field(default_factory=dict)  # config entries that every member has


LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
QK_NORM = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
GEMMA_NORMS = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
QKV = ("attn_q.bias", "attn_k.bias", "attn_v.bias")
QKVO = (*QKV, "attn_output.bias")
TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
SILU = {"hidden_act": "silu"}
GELU = {"hidden_activation": "gelu_pytorch_tanh"}
FAMILIES = {
    "llama": GGUFFamily("llama", "LlamaForCausalLM", LAYER, QKVO, permuted=True, extra=SILU),
    "qwen2": GGUFFamily("qwen2", "Qwen2ForCausalLM", LAYER, QKV, always_biased=True, extra=SILU),
    "qwen3": GGUFFamily("qwen3", "Qwen3ForCausalLM", LAYER | QK_NORM, QKVO, extra=SILU),
    "gemma3": GGUFFamily(
        "gemma3_text", "Gemma3ForCausalLM", LAYER | QK_NORM | GEMMA_NORMS, QKVO, norm_offset=1.0, extra=GELU
    ),
}
