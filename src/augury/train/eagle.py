"""Gate heads for `eagle`, `eagle3` (also P-EAGLE) and `mtp`, which are unrolled in the same way (pairs.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from augury.train.export import export, linked_copy, write_checkpoint
from augury.train.fit import fit
from augury.train.layers import DecoderLayer, LayerSizes
from augury.train.pairs import Deck, PairHead, pack, shake
from augury.train.recipe import Recipe
from augury.train.study import Study, stream_layers
from augury.train.words import Competition, fading, word_loss


class Eagle(PairHead):
    """EAGLE-1: a projection of token and feature, and a layer without its first norm; the head is the target's."""

    def __init__(self, shape: LayerSizes) -> None:
        super().__init__()
        self.fc = nn.Linear(2 * shape.hidden, shape.hidden, bias=False)
        self.layer = DecoderLayer(shape, input_norm=False)

    @classmethod
    def made_for(cls, config: Any, words: int) -> Eagle:
        """See PairHead.made_for."""
        return cls(LayerSizes.of_target(config))

    def publish(self, target: Path, config: Any, words: Tensor | None, directory: Path) -> None:
        """Write a checkpoint in the layout of EAGLE's authors."""
        told = {"model_type": "llama", "architectures": ["EagleLlamaForCausalLM"], **_sizes(config)}
        export(self, told, directory, self.published)

    @staticmethod
    def published(name: str) -> str:
        """See PairHead.published."""
        return name.replace("layer.", "layers.0.", 1)

    def enter(self, embedded: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """See PairHead.enter."""
        x = self.fc(torch.cat([embedded, hidden], dim=1))
        return x, x

    def leave(self, out: Tensor) -> tuple[Tensor, Tensor]:
        """See PairHead.leave."""
        return out, out


class Mtp(PairHead):
    """An MTP layer as MiMo has it: the hidden state first."""

    def __init__(self, shape: LayerSizes) -> None:
        super().__init__()
        self.token_layernorm, self.hidden_layernorm, self.final_layernorm = (
            nn.RMSNorm(shape.hidden, eps=shape.eps) for _ in range(3)
        )
        self.input_proj = nn.Linear(2 * shape.hidden, shape.hidden, bias=False)
        self.layer = DecoderLayer(shape)

    @classmethod
    def made_for(cls, config: Any, words: int) -> Mtp:
        """A layer of the target's own sizes: its config.json has no others."""
        return cls(LayerSizes.of_target(config))

    def publish(self, target: Path, config: Any, words: Tensor | None, directory: Path) -> None:
        """Write the target once more, by links, with the layer in a file of its own next to its weights."""
        told = json.loads((target / "config.json").read_text())
        linked_copy(target, directory, told | {"architectures": ["MiMoForCausalLM"], "num_nextn_predict_layers": 1})
        tensors = {self.published(name): t.cpu().contiguous() for name, t in self.state_dict().items()}
        save_file(tensors, directory / "mtp.safetensors", {"format": "pt"})

    @staticmethod
    def published(name: str) -> str:
        """See PairHead.published."""
        return f"model.mtp_layers.0.{name.removeprefix('layer.')}"

    def enter(self, embedded: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """See PairHead.enter."""
        x = self.input_proj(torch.cat([self.hidden_layernorm(hidden), self.token_layernorm(embedded)], dim=1))
        return self.layer.input_layernorm(x), x

    def leave(self, out: Tensor) -> tuple[Tensor, Tensor]:
        """See PairHead.leave."""
        final = self.final_layernorm(out)
        return final, final


class Eagle3(PairHead):
    """EAGLE-3 with a vocabulary of its own and 3.1's norms over the streams, whose scales are large and differ much;
    with a mask token it drafts in one pass (P-EAGLE)."""

    def __init__(self, shape: LayerSizes, streams: int, words: int, mask: int | None) -> None:
        super().__init__()
        self.fc_norm = nn.ModuleList(nn.RMSNorm(shape.hidden, eps=shape.eps) for _ in range(streams))
        self.fc = nn.Linear(streams * shape.hidden, shape.hidden, bias=False)
        self.layer = DecoderLayer(shape, width=2 * shape.hidden, hidden_norm=True)
        self.norm = nn.RMSNorm(shape.hidden, eps=shape.eps)
        self.lm_head = nn.Linear(shape.hidden, words, bias=False)
        self.mask = mask
        if mask is not None:
            self.mask_hidden = nn.Parameter(torch.zeros(1, 1, streams * shape.hidden))

    @classmethod
    def made_for(cls, config: Any, words: int) -> Eagle3:
        """See PairHead.made_for."""
        return cls(LayerSizes.of_target(config), len(cls.streams_of(config)), words, cls.mask_for(config))

    @property
    def output(self) -> nn.Linear | None:
        """See PairHead.output."""
        return self.lm_head

    @staticmethod
    def mask_for(config: Any) -> int | None:
        """The mask token, which stands for tokens not yet known; None: it drafts token by token."""
        return None

    @staticmethod
    def streams_of(config: Any) -> tuple[int, ...]:
        """An early, a middle and a late stream."""
        return stream_layers(config.num_hidden_layers)

    def publish(self, target: Path, config: Any, words: Tensor | None, directory: Path) -> None:
        """Write the original layout (`midlayer`), with d2t for `words` of its own; None: the target's head is used."""
        tensors = {self.published(name): t for name, t in self.state_dict().items()}
        told: dict[str, Any] = {
            "model_type": "llama",
            "architectures": ["LlamaForCausalLMEagle3"],
            **_sizes(config),
            "draft_vocab_size": config.vocab_size if words is None else len(words),
            "fc_norm": True,
            "eagle_aux_hidden_state_layer_ids": list(self.streams_of(config)),
        }
        if words is None:
            del tensors["lm_head.weight"]
        else:
            known = torch.zeros(config.vocab_size, dtype=torch.bool)
            known[words] = True
            tensors |= {"d2t": words - torch.arange(len(words)), "t2d": known}
        told |= {"mask_token_id": self.mask} if self.mask is not None else {}
        write_checkpoint(directory, tensors, told)

    @staticmethod
    def published(name: str) -> str:
        """See PairHead.published."""
        return name.replace("layer.", "midlayer.", 1)

    def combine(self, streams: Tensor) -> Tensor:
        """See PairHead.combine."""
        parts = streams.chunk(len(self.fc_norm), dim=1)
        combined: Tensor = self.fc(torch.cat([norm(x) for norm, x in zip(self.fc_norm, parts, strict=True)], dim=1))
        return combined

    def enter(self, embedded: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """See PairHead.enter."""
        normed = [self.layer.input_layernorm(embedded), self.layer.hidden_norm(hidden)]
        return torch.cat(normed, dim=1), hidden

    def leave(self, out: Tensor) -> tuple[Tensor, Tensor]:
        """See PairHead.leave."""
        return self.norm(out), out

    def later(self, embedding: Tensor, tokens: Tensor, onward: Tensor) -> tuple[Tensor, Tensor]:
        """P-EAGLE knows neither the tokens nor the states of its later guesses: masks stand for both."""
        if self.mask is None:
            return super().later(embedding, tokens, onward)
        hidden = self.combine(self.mask_hidden.view(1, -1)).expand(len(tokens), -1)
        return F.embedding(torch.full_like(tokens, self.mask), embedding).to(hidden.dtype), hidden


class PEagle(Eagle3):
    """EAGLE-3 that drafts in one pass; the mask is the vocabulary's last token, whose embedding is assumed unused."""

    @staticmethod
    def mask_for(config: Any) -> int | None:
        """See Eagle3.mask_for."""
        return int(config.vocab_size) - 1


def train_eagle(study: Study, directory: Path, recipe: Recipe) -> float:
    """Train a gate of EAGLE; returns the last loss."""
    return _against_the_target(Eagle, study, directory, recipe)


def train_mtp(study: Study, directory: Path, recipe: Recipe) -> float:
    """Train a gate of an MTP layer; returns the last loss."""
    return _against_the_target(Mtp, study, directory, recipe)


def train_eagle3(study: Study, directory: Path, recipe: Recipe) -> float:
    """Train a gate of EAGLE-3; returns the last loss."""
    return _train_eagle3(Eagle3, study, directory, recipe)


def train_p_eagle(study: Study, directory: Path, recipe: Recipe) -> float:
    """Train a gate of P-EAGLE; returns the last loss."""
    return _train_eagle3(PEagle, study, directory, recipe)


def _train_eagle3(kind: type[Eagle3], study: Study, directory: Path, recipe: Recipe) -> float:
    layers, words = kind.streams_of(study.config), study.words
    module = kind.made_for(study.config, len(words))
    shake(module)
    with torch.no_grad():
        module.lm_head.weight.copy_(study.head[words])  # a good starting point
    deck = Deck(study.lessons, recipe.lessons)

    def loss() -> Tensor:
        pairs = pack(deck.deal(), layers, recipe.depth)
        read = module.unroll(study, pairs)
        return fading([word_loss(module.lm_head(x), words, pairs.ahead[:, i]) for i, x in enumerate(read)])

    last = fit(module, loss, recipe.steps, recipe.rate, recipe.tick)
    module.publish(study.directory, study.config, words, directory)
    return last


def _against_the_target(kind: type[PairHead], study: Study, directory: Path, recipe: Recipe) -> float:
    """Train a head whose states the target's own output matrix reads."""
    module = kind.made_for(study.config, study.config.vocab_size)
    shake(module)
    deck, competition = Deck(study.lessons, recipe.lessons), Competition(study.head, study.words)

    def loss() -> Tensor:
        competition.draw()
        pairs = pack(deck.deal(), kind.streams_of(study.config), recipe.depth)
        read = module.unroll(study, pairs)
        return fading([competition.loss(x, pairs.ahead[:, i]) for i, x in enumerate(read)])

    last = fit(module, loss, recipe.steps, recipe.rate, recipe.tick)
    module.publish(study.directory, study.config, None, directory)
    return last


def _sizes(target: Any) -> dict[str, Any]:
    return LayerSizes.of_target(target).config(target.vocab_size, target.max_position_embeddings)
