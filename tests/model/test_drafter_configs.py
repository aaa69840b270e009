"""A drafter's config.json with senseless values: one line that names the key, whatever the kind, and no traceback."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from augury.model.errors import ModelError
from augury.model.heads.dflash_config import DFLASH, DFLASH2, DSPARK, read_dflash_config
from augury.model.heads.files import llama_config

LAYERS = {
    "model_type": "qwen3",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_hidden_layers": 2,
    "rms_norm_eps": 1e-6,
    "vocab_size": 260,
}
WHOLE = ("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", "head_dim")
SENSELESS: list[tuple[str, Any]] = [
    *((name, value) for name in WHOLE for value in ("8", -1, 1.5, True, [], {}, 10**12)),
    *(("rms_norm_eps", value) for value in ("x", [], float("inf"))),
    *(("draft_vocab_size", value) for value in ("x", 0, -4, 1.5, [1])),
    ("dflash_config", "x"),
    ("transformer_layer_config", [1]),
    ("input_embedding_scale", "x"),
    ("final_logit_softcapping", [1]),
    ("rope_theta", "x"),
]


@pytest.mark.parametrize("kind", [DFLASH, DFLASH2, DSPARK])
@pytest.mark.parametrize(("name", "value"), SENSELESS)
def test_a_block_drafter_names_the_key(tmp_path: Path, kind: str, name: str, value: Any) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**LAYERS, "mask_token_id": 259, name: value}))
    with pytest.raises(ModelError, match=name) as refused:
        read_dflash_config(tmp_path, 4, kind)
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 600


@pytest.mark.parametrize(("name", "value"), [("rms_norm_eps", "x"), ("transformer_layer_config", "x")])
def test_an_eagle_head_names_the_key(name: str, value: Any) -> None:
    with pytest.raises(ModelError, match=name) as refused:
        llama_config({**LAYERS, name: value})
    assert "\n" not in str(refused.value)


def test_an_unknown_layer_type_does_not_list_all_that_are_known(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**LAYERS, "model_type": "qwen99"}))
    with pytest.raises(ModelError, match="qwen99") as refused:
        read_dflash_config(tmp_path, 4, DSPARK)
    assert len(str(refused.value)) < 600


@pytest.mark.parametrize("names", [7, True, {"a": 1}])
def test_architectures_that_are_no_list_name_nothing(tmp_path: Path, names: Any) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**LAYERS, "mask_token_id": 259, "architectures": names}))
    assert read_dflash_config(tmp_path, 4, DFLASH).layer.hidden_size == 64
