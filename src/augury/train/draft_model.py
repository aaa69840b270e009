"""A gate drafter for `draft_model`: the target's first and last layer, trained to predict what all of it says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from augury.methods.mtp import DEPTH
from augury.train.export import copy_tokenizer, halved, write_checkpoint
from augury.train.fit import fit
from augury.train.pairs import Deck
from augury.train.recipe import Recipe
from augury.train.study import Lesson, Study
from augury.train.words import Competition


def kept_layers(layers: int, count: int = 2) -> list[int]:
    """Which of the target's layers stay: `count` of them, the first and the last and some between; never all."""
    count = max(1, min(count, layers - 1))
    return [0] if count == 1 else [round(i * (layers - 1) / (count - 1)) for i in range(count)]


def shallow(directory: Path, config: dict[str, Any], kept: list[int]) -> nn.Module:
    """transformers' model of the target with only those layers; embeddings and head are not trained."""
    from transformers import AutoModelForCausalLM
    from transformers.models.auto.configuration_auto import AutoConfig

    model: Any = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config), dtype=torch.float32)
    tensors = {}
    for file in sorted(directory.glob("model*.safetensors")):
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


def shallow_config(directory: Path, kept: list[int]) -> dict[str, Any]:
    """The target's config.json with only those layers."""
    config: dict[str, Any] = json.loads((directory / "config.json").read_text())
    config |= {"num_hidden_layers": len(kept), "dtype": "float32"}
    if kinds := config.get("layer_types"):  # one for each layer
        config["layer_types"] = [kinds[i] for i in kept]
    config.pop(DEPTH, None)  # the target's MTP layers are not among them
    return config


def write_shallow(tensors: dict[str, Tensor], config: dict[str, Any], target: Path, directory: Path) -> None:
    """A checkpoint of such a model with the target's tokenizer; a tied output matrix is left out."""
    tensors = dict(tensors)
    if config.get("tie_word_embeddings"):
        tensors.pop("lm_head.weight", None)
    write_checkpoint(directory, halved(tensors), config)
    copy_tokenizer(target, directory)


def train_draft_model(study: Study, directory: Path, recipe: Recipe) -> float:
    """Train it on the answers, given their prompts; returns the last loss."""
    kept = kept_layers(study.config.num_hidden_layers)
    config = shallow_config(study.directory, kept)
    module: Any = shallow(study.directory, config, kept)
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
    tied = {"tie_word_embeddings": study.config.tie_word_embeddings}
    write_shallow(module.state_dict(), config | tied, study.directory, directory)
    return last
