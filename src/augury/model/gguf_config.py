"""The configuration inside a GGUF file, by transformers' names."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from augury.model.errors import ModelError
from augury.model.gguf_tokenizer import end_ids, special_id

if TYPE_CHECKING:
    import numpy as np

    from augury.model.gguf_families import GGUFFamily
    from augury.model.gguf_file import GGUFFile

GEMMA_27B_LAYERS = 62  # the one Gemma 3 that scales attention by hidden size and heads; no key says so
GEMMA_PATTERN = 6  # every sixth layer of Gemma 3 sees the whole context
SAMPLING = {"temp": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p"}


def build_config(file: GGUFFile, family: GGUFFamily) -> dict[str, Any]:
    """config.json of a GGUF file."""
    view = _View(file)
    heads = view.count("attention.head_count")
    hidden = view.count("embedding_length")
    head_dim = view.count("attention.key_length", hidden // heads)
    layers = view.count("block_count")
    _check_shapes(view, head_dim)
    if layers > len(file.tensors):  # before allocating anything for four billion layers
        raise ModelError(f"{file.path}: {layers} layers but {len(file.tensors)} tensors; the file is broken.")
    config = {
        "architectures": [family.class_name],
        "model_type": family.model_type,
        "dtype": "float32",
        "vocab_size": _vocabulary_size(file),
        "hidden_size": hidden,
        "intermediate_size": view.count("feed_forward_length"),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": view.count("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": view.count("context_length"),
        "rms_norm_eps": view.number("attention.layer_norm_rms_epsilon"),
        "rope_parameters": _rope(view),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "bos_token_id": special_id(file, "bos"),
        "eos_token_id": special_id(file, "eos"),
        "pad_token_id": special_id(file, "padding"),
        "transformers_version": "5.0.0",  # the layout written here; transformers patches tokenizers of older ones
        **family.extra,
    }
    config |= _family_entries(view, config)
    return {key: value for key, value in config.items() if value is not None}


def build_generation_config(file: GGUFFile) -> dict[str, Any]:
    """generation_config.json of a GGUF file: the tokens that end a text, and the sampling that its maker recommends."""
    config: dict[str, Any] = {
        "bos_token_id": special_id(file, "bos"),
        "eos_token_id": end_ids(file) or None,
        "pad_token_id": special_id(file, "padding"),
        "transformers_version": "5.0.0",
    }
    sampling = {name: file.metadata.get(f"general.sampling.{key}") for key, name in SAMPLING.items()}
    sampling = {name: _tidy(value) for name, value in sampling.items() if value is not None}
    if sampling:
        config |= {"do_sample": True} | sampling
    return {key: value for key, value in config.items() if value is not None}


class _View:
    """The metadata under the name of the file's architecture."""

    def __init__(self, file: GGUFFile) -> None:
        self.file = file
        self.architecture = file.need("general.architecture")

    def get(self, key: str, default: Any = None) -> Any:
        """A value that may be missing."""
        return _tidy(self.file.metadata.get(f"{self.architecture}.{key}", default))

    def number(self, key: str) -> Any:
        """A value that must be there."""
        return _tidy(self.file.need(f"{self.architecture}.{key}"))

    def count(self, key: str, default: int | None = None) -> int:
        """A positive whole number; some files give it layer by layer, but it must be the same in all."""
        value = self.number(key) if default is None else self.get(key, default)
        values = set(value) if isinstance(value, list) else {value}
        if len(values) > 1:
            raise ModelError(f"{self.file.path}: {self.architecture}.{key} differs between layers; not supported.")
        found = values.pop() if values else None
        if not isinstance(found, int) or found < 1:
            raise ModelError(f"{self.file.path}: {self.architecture}.{key} is {found!r}; the file is broken.")
        return found


def _tidy(value: Any) -> Any:
    """The shortest decimal of a float32: 9.999999747378752e-06 was written as 1e-05."""
    if isinstance(value, float):
        import numpy as np

        return float(str(np.float32(value)))
    return value


def _check_shapes(view: _View, head_dim: int) -> None:
    """Refuse attention shapes that the transformers classes do not have."""
    for key in ("attention.value_length", "rope.dimension_count"):
        if view.get(key, head_dim) != head_dim:
            found = f"{view.architecture}.{key} is {view.get(key)}"
            raise ModelError(f"{view.file.path}: {found} but heads have {head_dim}; not supported.")


def _vocabulary_size(file: GGUFFile) -> int:
    """Rows of the embedding matrix: metadata and vocabulary may count without the padding."""
    if "token_embd.weight" not in file.tensors:
        raise ModelError(f"{file.path}: tensor 'token_embd.weight' is missing; the file holds no model.")
    rows = file.tensors["token_embd.weight"].shape[0]
    tokens = len(file.need("tokenizer.ggml.tokens"))
    if tokens > rows:
        raise ModelError(f"{file.path}: {tokens} tokens but {rows} embeddings; the file is broken.")
    return rows


def _family_entries(view: _View, config: dict[str, Any]) -> dict[str, Any]:
    """Entries that only some families have."""
    window = view.get("attention.sliding_window")
    if view.architecture == "llama" and window:
        # Of the llama-type classes only Mistral's knows a window.
        return {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": window}
    if view.architecture != "gemma3":
        return {"use_sliding_window": False} if view.architecture.startswith("qwen") else {}
    layers = config["num_hidden_layers"]
    pattern = view.get("attention.sliding_window_pattern", GEMMA_PATTERN)
    sliding = pattern if isinstance(pattern, list) else [(i + 1) % pattern != 0 for i in range(layers)]
    scale = config["hidden_size"] // config["num_attention_heads"] if layers == GEMMA_27B_LAYERS else config["head_dim"]
    local = {"rope_type": "default", "rope_theta": view.get("rope.freq_base_swa", 10000.0)}
    return {
        "sliding_window": window,
        "layer_types": ["sliding_attention" if local_only else "full_attention" for local_only in sliding],
        "query_pre_attn_scalar": scale,
        "final_logit_softcapping": view.get("final_logit_softcapping"),
        "rope_parameters": {"full_attention": config["rope_parameters"], "sliding_attention": local},
    }


def _rope(view: _View) -> dict[str, Any]:
    """Rotary parameters: base, and the scaling that stretches the context."""
    theta = view.get("rope.freq_base", 10000.0)
    factors = view.file.tensors.get("rope_freqs.weight")
    if factors is not None:
        from gguf.quants import dequantize

        return {"rope_theta": theta} | llama3_scaling(dequantize(factors.raw, factors.kind).reshape(-1), theta, view)
    factor = view.get("rope.scaling.factor", view.get("rope.scale_linear", 1.0))
    kind = view.get("rope.scaling.type", "linear" if factor not in (0.0, 1.0) else "none")
    if kind == "none" or (kind == "linear" and factor in (0.0, 1.0)):
        return {"rope_type": "default", "rope_theta": theta}
    if kind == "linear":
        return {"rope_type": "linear", "rope_theta": theta, "factor": factor}
    if kind != "yarn":
        raise ModelError(
            f"{view.file.path}: rope scaling {kind!r} is not supported; supported: none, linear, yarn, llama3."
        )
    optional = {
        "attention_factor": view.get("rope.scaling.yarn_attn_factor", view.get("rope.scaling.attn_factor")),
        "beta_fast": view.get("rope.scaling.yarn_beta_fast"),
        "beta_slow": view.get("rope.scaling.yarn_beta_slow"),
    }
    return {
        "rope_type": "yarn",
        "rope_theta": theta,
        "factor": factor,
        "original_max_position_embeddings": view.number("rope.scaling.original_context_length"),
    } | {key: value for key, value in optional.items() if value is not None}


def llama3_scaling(factors: np.ndarray, theta: float, view: _View) -> dict[str, Any]:
    """The parameters of Llama 3's scaling, recovered from the factors that GGUF stores instead."""
    import numpy as np

    top = float(round(factors.max()))
    inverse_wavelength = theta ** (-np.arange(len(factors)) / len(factors)) / (2 * math.pi)
    original = view.get("rope.scaling.original_context_length", 8192)
    for low, high, context in ((1.0, 4.0, original), (1.0, 4.0, view.count("context_length") / top)):
        smooth = np.clip((context * inverse_wavelength - low) / (high - low), 0.0, 1.0)
        if np.allclose(1.0 / ((1.0 - smooth) / top + smooth), factors, rtol=1e-3):
            return {
                "rope_type": "llama3",
                "factor": top,
                "low_freq_factor": low,
                "high_freq_factor": high,
                "original_max_position_embeddings": int(context),
            }
    # Any other table of factors is a LongRoPE whose short and long halves are the same.
    table = [float(value) for value in factors]
    context = view.count("context_length")
    return {
        "rope_type": "longrope",
        "short_factor": table,
        "long_factor": table,
        "factor": 1.0,
        "attention_factor": 1.0,
        "original_max_position_embeddings": context,
    }
