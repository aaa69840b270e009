"""A gate drafter for `draft_model`: the target's first and last layer, trained to say what the whole of it says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from augury.train.export import copy_tokenizer, halved, write_checkpoint
from augury.train.fit import fit
from augury.train.pairs import Deck
from augury.train.recipe import Recipe
from augury.train.study import Lesson, Study
from augury.train.words import Competition


def kept_layers(layers: int) -> list[int]:
    """Which layers stay."""
    return [0] if layers <= 2 else [0, layers - 1]


def shallow(study: Study, config: dict[str, Any]) -> nn.Module:
    """transformers' model of the target with only those layers; embeddings and head are not trained."""
    from transformers import AutoModelForCausalLM
    from transformers.models.auto.configuration_auto import AutoConfig

    kept = kept_layers(study.config.num_hidden_layers)
    model: Any = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config), dtype=torch.float32)
    tensors = {}
    for file in sorted(study.directory.glob("model*.safetensors")):
        for name, tensor in load_file(file).items():
            parts = name.split(".")
            if parts[:2] == ["model", "layers"]:
                if int(parts[2]) not in kept:
                    continue
                parts[2] = str(kept.index(int(parts[2])))
            tensors[".".join(parts)] = tensor.float()
    model.load_state_dict(tensors, strict=False)
    model.get_input_embeddings().requires_grad_(False)
    model.get_output_embeddings().requires_grad_(False)
    return model  # type: ignore[no-any-return]


def train_draft_model(study: Study, directory: Path, recipe: Recipe) -> float:
    """Train it on the answers, the prompts before them; gives the last loss."""
    config = json.loads((study.directory / "config.json").read_text())
    config |= {"num_hidden_layers": len(kept_layers(study.config.num_hidden_layers)), "dtype": "float32"}
    module: Any = shallow(study, config)
    deck, competition = Deck(study.lessons, recipe.lessons), Competition(study.head, study.words)

    def states(lesson: Lesson) -> Tensor:
        hidden: Tensor = module.model(input_ids=lesson.tokens[None, :-1]).last_hidden_state[0]
        return hidden[lesson.start - 1 :]  # those that guess the answer

    def loss() -> Tensor:
        competition.draw()
        dealt = deck.deal()
        labels = torch.cat([lesson.tokens[lesson.start :] for lesson in dealt])
        return competition.loss(torch.cat([states(lesson) for lesson in dealt]), labels)

    last = fit(module, loss, recipe.steps, recipe.rate, recipe.tick)
    tensors = {name: t for name, t in module.state_dict().items() if name != "lm_head.weight"}
    if not study.config.tie_word_embeddings:
        tensors["lm_head.weight"] = study.head
    write_checkpoint(directory, halved(tensors), config)
    copy_tokenizer(study.directory, directory)
    return last
