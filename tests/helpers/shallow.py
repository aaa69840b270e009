"""A drafter made from its target: the same model with some layers left out. Weak, but real, and made in a second."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file


def shallow_copy(target: Path, layers: list[int], directory: Path) -> Path:
    """Write the model that has only these layers of the target's."""
    directory.mkdir(parents=True, exist_ok=True)
    config = json.loads((target / "config.json").read_text())
    config["num_hidden_layers"] = len(layers)
    (directory / "config.json").write_text(json.dumps(config))
    for file in sorted(target.glob("*.safetensors")):  # the weights, and the same in the precision of a GGUF file
        kept = {}
        with safe_open(file, "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 (safe_open is no dictionary)
                parts = name.split(".")
                if parts[:2] == ["model", "layers"]:
                    if int(parts[2]) not in layers:
                        continue
                    parts[2] = str(layers.index(int(parts[2])))
                kept[".".join(parts)] = tensors.get_tensor(name)
            save_file(kept, directory / file.name, tensors.metadata())
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json"):
        if (target / name).is_file():
            shutil.copy(target / name, directory / name)
    return directory
