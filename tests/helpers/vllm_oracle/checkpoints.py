"""Tiny checkpoints, made on the fly: a config.json each, since a configuration is judged before any weight is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Raw = dict[str, Any]
DEPTH = "num_nextn_predict_layers"

LLAMA: Raw = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128,
    "hidden_size": 96,
    "intermediate_size": 192,
    "num_hidden_layers": 4,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "head_dim": 8,
    "max_position_embeddings": 2048,
    "torch_dtype": "bfloat16",
}
QWEN3: Raw = {**LLAMA, "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}
QWEN2: Raw = {**LLAMA, "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}
DEEPSEEK: Raw = {
    **LLAMA,
    "model_type": "deepseek_v3",
    "architectures": ["DeepseekV3ForCausalLM"],
    "num_key_value_heads": 12,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 32,
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    DEPTH: 1,
}
HEAD: Raw = {**LLAMA, "num_hidden_layers": 1}
EAGLE3: Raw = {**HEAD, "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 64}
DFLASH: Raw = {
    **QWEN3,
    "num_hidden_layers": 2,
    "architectures": ["DFlashDraftModel"],
    "block_size": 8,
    "dflash_config": {"mask_token_id": 127, "target_layer_ids": [0, 1, 2]},
}
DSPARK: Raw = {**DFLASH, "architectures": ["Qwen3DSparkModel"], "markov_rank": 4, "markov_head_type": "vanilla"}
MOE: Raw = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}


def speculator(kind: str, layer: Raw, tokens: int, **more: Any) -> Raw:
    """A checkpoint of the speculators format."""
    verifier = {"name_or_path": "llama", "architectures": ["LlamaForCausalLM"]}
    proposal = {"proposal_type": "greedy", "speculative_tokens": tokens}
    inner = {"algorithm": kind, "default_proposal_method": "greedy", "proposal_methods": [proposal]}
    return {
        "speculators_model_type": kind,
        "speculators_version": "0.3.0",
        "architectures": [{"eagle3": "Eagle3Speculator", "peagle": "PEagleDraftModel"}.get(kind, "DFlashDraftModel")],
        "transformer_layer_config": layer,
        "speculators_config": {**inner, "verifier": verifier},
        **more,
    }


TARGETS: dict[str, Raw] = {
    "llama": LLAMA,
    "wide-llama": {**LLAMA, "hidden_size": 192, "head_dim": 16},
    "long-llama": {**LLAMA, "max_position_embeddings": 8192},
    "qwen2": QWEN2,
    "qwen3": QWEN3,
    "mistral": {**LLAMA, "model_type": "mistral", "architectures": ["MistralForCausalLM"]},
    "deepseek": DEEPSEEK,
    "deepseek-two": {**DEEPSEEK, DEPTH: 2},
    "deepseek-none": {name: value for name, value in DEEPSEEK.items() if name != DEPTH},
    "deepseek-v32": {
        **DEEPSEEK,
        "model_type": "deepseek_v32",
        "architectures": ["DeepseekV32ForCausalLM"],
        "index_topk": 8,
        "index_n_heads": 2,
        "index_head_dim": 8,
    },
    "mimo": {**QWEN2, "architectures": ["MiMoForCausalLM"], DEPTH: 1},
    "glm4-moe": {
        **LLAMA,
        **MOE,
        "model_type": "glm4_moe",
        "architectures": ["Glm4MoeForCausalLM"],
        DEPTH: 1,
        "n_routed_experts": 4,
    },
    "ernie-moe": {
        **LLAMA,
        "model_type": "ernie4_5_moe",
        "architectures": ["Ernie4_5_MoeForCausalLM"],
        DEPTH: 1,
        "moe_num_experts": 4,
        "moe_k": 2,
    },
    "qwen3-next": {**LLAMA, **MOE, "model_type": "qwen3_next", "architectures": ["Qwen3NextForCausalLM"], DEPTH: 1},
    "qwen35-text": {
        **LLAMA,
        "model_type": "qwen3_5_text",
        "architectures": ["Qwen3_5ForCausalLM"],
        "mtp_num_hidden_layers": 1,
    },
    "longcat": {**DEEPSEEK, "model_type": "longcat_flash", "architectures": ["LongcatFlashForCausalLM"]},
    "step": {**LLAMA, "model_type": "step3p5", "architectures": ["Step3p5ForCausalLM"], DEPTH: 3},
    "exaone-moe": {**LLAMA, **MOE, "model_type": "exaone_moe", "architectures": ["ExaoneMoEForCausalLM"], DEPTH: 1},
    "nemotron": {
        **LLAMA,
        "model_type": "nemotron_h",
        "architectures": ["NemotronHForCausalLM"],
        DEPTH: 1,
        "hybrid_override_pattern": "M*-M",
    },
    "hunyuan": {**LLAMA, **MOE, "model_type": "hy_v3", "architectures": ["HYV3ForCausalLM"], DEPTH: 1},
}

DRAFTERS: dict[str, Raw] = {
    "small-llama": {**LLAMA, "num_hidden_layers": 2},
    "small-qwen2": {**QWEN2, "num_hidden_layers": 2},
    "small-qwen3": {**QWEN3, "num_hidden_layers": 2},
    "other-words": {**LLAMA, "vocab_size": 96},
    "six-heads": {**LLAMA, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 16},
    "one-kv-head": {**LLAMA, "num_key_value_heads": 1},
    "short": {**LLAMA, "max_position_embeddings": 512},
    "plain-head": HEAD,
    "eagle-llama": HEAD,
    "head-eagle3": EAGLE3,
    "renamed-head": EAGLE3,
    "wide-eagle3": {**EAGLE3, "hidden_size": 192, "head_dim": 16},
    "short-eagle3": {**EAGLE3, "max_position_embeddings": 512},
    "heads-eagle3": {**EAGLE3, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 16},
    "qwen3-head": {**QWEN3, "num_hidden_layers": 1},
    "qwen2-head": {**QWEN2, "num_hidden_layers": 1},
    "mistral-head": {**HEAD, "model_type": "mistral", "architectures": ["MistralForCausalLM"]},
    "named-eagle": {**HEAD, "architectures": ["EagleLlamaForCausalLM"]},
    "named-three": {**EAGLE3, "architectures": ["Eagle3LlamaForCausalLM"]},
    "predicts-two": {**HEAD, "n_predict": 2},
    "medusa": {
        "model_type": "medusa",
        "architectures": ["MedusaModel"],
        "num_heads": 4,
        "hidden_size": 96,
        "num_hidden_layers": 1,
        "vocab_size": 128,
        "truncated_vocab_size": 128,
    },
    "old-medusa": {"medusa_num_heads": 4, "medusa_num_layers": 1, "base_model_name_or_path": "llama"},
    "mlp": {
        "model_type": "mlp_speculator",
        "architectures": ["MLPSpeculatorPreTrainedModel"],
        "n_predict": 3,
        "emb_dim": 96,
        "inner_dim": 96,
        "vocab_size": 128,
    },
    "block-dflash": DFLASH,
    "block-head": DFLASH,
    "markov-dspark": DSPARK,
    "markov-head": DSPARK,
    "markov-v4": {**DSPARK, "architectures": ["DSparkDraftModel"]},
    "spec-three": speculator("eagle3", HEAD, 5, draft_vocab_size=64, norm_before_residual=True),
    "spec-peagle": speculator("peagle", HEAD, 4, draft_vocab_size=64, mask_token_id=127),
    "spec-flash": speculator(
        "dflash",
        {**QWEN3, "num_hidden_layers": 2},
        7,
        draft_vocab_size=64,
        block_size=8,
        mask_token_id=127,
        aux_hidden_state_layer_ids=[1, 2, 3],
    ),
}

ALL = {**TARGETS, **DRAFTERS}


def make(folder: Path) -> Path:
    """Every checkpoint in a folder of its name."""
    for name, raw in ALL.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "config.json").write_text(json.dumps(raw))
    return folder
