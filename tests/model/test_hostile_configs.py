"""A config.json with odd types, loaded or only looked at."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from bounded_run import SPEC, run

from augury.model.errors import ModelError

ODD: list[tuple[str, Any]] = [
    ("num_hidden_layers", 10**9),
    ("num_hidden_layers", -1),
    ("num_hidden_layers", "x"),
    ("num_attention_heads", 0),
    ("num_attention_heads", 2.5),
    ("hidden_size", -1),
    ("hidden_size", [[]]),
    ("vocab_size", 10**400),
    ("dtype", 1e308),
    ("attention_bias", None),
    ("rope_parameters", [1]),
    ("architectures", 3),
    ("model_type", []),
    ("layer_types", "x"),
    ("text_config", {"num_hidden_layers": 10**12}),
    ("quantization_config", [1]),
]


@pytest.mark.parametrize(("key", "value"), ODD, ids=lambda value: str(value)[:20])
def test_odd_types_are_one_line(toy_model: Path, tmp_path: Path, key: str, value: Any) -> None:
    """Loaded or only looked at: it runs, or one line says what is wrong; nobody loops over a billion layers."""
    for file in toy_model.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((toy_model / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, key: value}))
    for words in (
        ("generate", "x", "--model", str(tmp_path), "--max-tokens", "1", "--device", "cpu"),
        ("doctor", SPEC, "--target", str(tmp_path)),
        ("advise", "--target", str(tmp_path), "--gpu", "H200"),
        ("models", "show", str(tmp_path)),
    ):
        code, said = run(*words)
        assert code in (0, 1) or (code == 2 and "error: " in said and len(said) < 1000), said


def test_the_weights_decide_within_plausible_numbers(toy_model: Path, tmp_path: Path) -> None:
    from augury.model.plausible import check_plausible

    check_plausible(toy_model)
    check_plausible(tmp_path)  # nothing there
    for config, fine in (
        ({"num_experts": None, "hidden_size": 64}, True),
        ({"num_key_value_heads": [2, 4]}, True),
        ({"num_experts": True}, False),
        ({"head_dim": [2, "x"]}, False),
    ):
        (tmp_path / "config.json").write_text(json.dumps(config))
        if fine:
            check_plausible(tmp_path)
        else:
            with pytest.raises(ModelError, match="is not a number from 0 to"):
                check_plausible(tmp_path)
