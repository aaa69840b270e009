"""Small GGUF files for tests, written from small transformers models with the same numbers in them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind
from gguf.quants import dequantize, quantize
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from augury.model.gguf import convert

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
GEMMA_NAMES = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
CLASSES = {
    "gemma3": (Gemma3TextConfig, Gemma3ForCausalLM),
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}
MERGES = ["h e", "l l", "he ll", "hell o", "Ġ w", "Ġw o", "1 2", "12 3", "Ã ©"]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool>"]
CHAT = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"


def byte_alphabet() -> list[str]:
    """The 256 characters that stand for bytes in byte-level BPE, byte by byte."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    letters = {byte: chr(byte) for byte in printable}
    for byte in range(256):
        letters.setdefault(byte, chr(256 + len(letters) - len(printable)))
    return [letters[byte] for byte in range(256)]


def vocabulary() -> tuple[list[str], list[int]]:
    """Token texts and types: bytes, merged pieces, three control tokens and a user-defined one."""
    texts = byte_alphabet() + [merge.replace(" ", "") for merge in MERGES] + SPECIAL
    types = [1] * (len(texts) - len(SPECIAL)) + [3, 3, 3, 4]
    return texts, types


def tiny_model(architecture: str, **changes: Any) -> torch.nn.Module:
    """A random model of the architecture, two layers, 64 wide."""
    config_class, model_class = CLASSES[architecture]
    settings = {
        "vocab_size": len(vocabulary()[0]),
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 256,
        "tie_word_embeddings": True,
    }
    torch.manual_seed(0)
    model = model_class(config_class(**settings | changes)).eval()
    for name, weight in model.named_parameters():
        if weight.dim() == 1:  # norms of one and biases of zero would hide a mistake
            weight.data += 0.1 * torch.randn_like(weight)
        elif "proj" in name:
            weight.data *= 4
    return model


def interleave(weight: np.ndarray, heads: int) -> np.ndarray:
    """Order the rows of Q or K as llama.cpp's converter does."""
    shape = (heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return weight.reshape(shape).swapaxes(1, 2).reshape(weight.shape)


def gguf_name(name: str, architecture: str) -> str:
    """The GGUF name of a transformers parameter."""
    names = NAMES | GEMMA_NAMES if architecture == "gemma3" else NAMES
    stem, _, ending = name.rpartition(".")
    if stem in names:
        return f"{names[stem]}.{ending}"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{names[part]}.{ending}"


def write_gguf(
    path: Path,
    architecture: str = "llama",
    kind: Kind = Kind.F32,
    edit: Callable[[gguf.GGUFWriter], None] | None = None,
    skip: tuple[str, ...] = (),
    pre: str = "gpt-2",
    **changes: Any,
) -> torch.nn.Module:
    """Write a tiny model as GGUF and give the model, holding exactly what a reader of the file should find.

    `skip` names metadata keys (or their endings) to leave out; `edit` may add to the file before it is written.
    """
    model = tiny_model(architecture, **changes)
    writer = gguf.GGUFWriter(path, architecture)
    _add_metadata(writer, model.config, pre, skip)
    for name, parameter in model.named_parameters():
        values = parameter.detach().numpy()
        stored = kind if values.ndim == 2 and "norm" not in name else Kind.F32
        heads = {"q_proj": model.config.num_attention_heads, "k_proj": model.config.num_key_value_heads}
        part = name.split(".")[-2]
        ordered = interleave(values, heads[part]) if architecture == "llama" and part in heads else values
        if architecture == "gemma3" and "norm" in name:
            values = np.float32(1) + values - np.float32(1)  # what is left after the trip through 1 + w
            ordered = np.float32(1) + values
        packed = quantize(np.ascontiguousarray(ordered), stored)
        writer.add_tensor(gguf_name(name, architecture), packed, raw_dtype=stored)
        parameter.data = torch.from_numpy(dequantize(quantize(values, stored), stored).copy())
    if edit:
        edit(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def write_and_convert(folder: Path, *args: Any, **changes: Any) -> tuple[torch.nn.Module, Path]:
    """Write a tiny GGUF file and convert it: (the model written, the directory made)."""
    model = write_gguf(folder / "tiny.gguf", *args, **changes)
    target = folder / "converted"
    target.mkdir()
    convert(folder / "tiny.gguf", target, quiet=True)
    return model, target


def _add_metadata(writer: gguf.GGUFWriter, config: Any, pre: str, skip: tuple[str, ...]) -> None:
    texts, types = vocabulary()
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(texts)
    writer.add_token_types(types)
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(texts.index("<|im_start|>"))
    writer.add_eos_token_id(texts.index("<|im_end|>"))
    writer.add_chat_template(CHAT)
    for values in writer.kv_data:
        for key in [key for key in values if key.endswith(skip)] if skip else []:
            del values[key]
