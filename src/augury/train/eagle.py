"""Gate heads for `eagle`, `eagle3` (also P-EAGLE) and `mtp`: they share how they are unrolled, see pairs.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from augury.model.target import NORMED
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

    def enter(self, embedded: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """See PairHead.enter."""
        x = self.input_proj(torch.cat([self.hidden_layernorm(hidden), self.token_layernorm(embedded)], dim=1))
        return self.layer.input_layernorm(x), x

    def leave(self, out: Tensor) -> tuple[Tensor, Tensor]:
        """See PairHead.leave."""
        final = self.final_layernorm(out)
        return final, final


class Eagle3(PairHead):
    """EAGLE-3 with words of its own and 3.1's norms over the streams, which are loud and differ much from one another;
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


def train_eagle(study: Study, directory: Path, recipe: Recipe) -> float:
    """A head as its authors publish it; gives the last loss."""
    module = Eagle(LayerSizes.like(study.config))
    last = _against_the_target(module, study, recipe)
    write_eagle(module, study.config, directory)
    return last


def write_eagle(module: Eagle, target: Any, directory: Path) -> None:
    """A checkpoint in the layout of EAGLE's authors; `target` is the target's configuration."""
    config = {"model_type": "llama", "architectures": ["EagleLlamaForCausalLM"], **_sizes(target)}
    export(module, config, directory, lambda name: name.replace("layer.", "layers.0.", 1))


def train_mtp(study: Study, directory: Path, recipe: Recipe) -> float:
    """A layer of the target's own sizes: its config.json has no others."""
    module = Mtp(LayerSizes.of_target(study.config))
    last = _against_the_target(module, study, recipe)
    write_mtp(module, study.directory, directory)
    return last


def write_mtp(module: Mtp, target: Path, directory: Path) -> None:
    """The target once more, by links, with the layer in a file of its own beside its weights."""
    config = json.loads((target / "config.json").read_text())
    linked_copy(target, directory, config | {"architectures": ["MiMoForCausalLM"], "num_nextn_predict_layers": 1})
    state = module.state_dict().items()
    tensors = {f"model.mtp_layers.0.{name.removeprefix('layer.')}": t.cpu().contiguous() for name, t in state}
    save_file(tensors, directory / "mtp.safetensors", {"format": "pt"})


def train_eagle3(study: Study, directory: Path, recipe: Recipe) -> float:
    """A head in the original layout (`midlayer`), words of its own by d2t."""
    return _train_eagle3(study, directory, recipe, None)


def train_p_eagle(study: Study, directory: Path, recipe: Recipe) -> float:
    """The same, drafting in one pass; the mask is the vocabulary's last token, whose embedding nobody needs."""
    return _train_eagle3(study, directory, recipe, study.config.vocab_size - 1)


def _train_eagle3(study: Study, directory: Path, recipe: Recipe, mask: int | None) -> float:
    shape, layers, words = LayerSizes.like(study.config), stream_layers(study.config.num_hidden_layers), study.words
    module = Eagle3(shape, len(layers), len(words), mask)
    shake(module)
    with torch.no_grad():
        module.lm_head.weight.copy_(study.head[words])  # a good beginning
    deck = Deck(study.lessons, recipe.lessons)

    def loss() -> Tensor:
        pairs = pack(deck.deal(), layers, recipe.depth)
        read = module.unroll(study, pairs)
        return fading([word_loss(module.lm_head(x), words, pairs.ahead[:, i]) for i, x in enumerate(read)])

    last = fit(module, loss, recipe.steps, recipe.rate, recipe.tick)
    write_eagle3(module, study.config, layers, words, directory)
    return last


def write_eagle3(module: Eagle3, target: Any, layers: tuple[int, ...], words: Tensor | None, directory: Path) -> None:
    """A checkpoint in the original layout; without words of its own it is read by the target's output matrix."""
    tensors = {name.replace("layer.", "midlayer.", 1): t for name, t in module.state_dict().items()}
    config: dict[str, Any] = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLMEagle3"],
        **_sizes(target),
        "fc_norm": True,
        "eagle_aux_hidden_state_layer_ids": list(layers),
    }
    if words is None:
        del tensors["lm_head.weight"]
        config["draft_vocab_size"] = target.vocab_size
    else:
        known = torch.zeros(target.vocab_size, dtype=torch.bool)
        known[words] = True
        tensors |= {"d2t": words - torch.arange(len(words)), "t2d": known}
        config["draft_vocab_size"] = len(words)
    config |= {"mask_token_id": module.mask} if module.mask is not None else {}
    write_checkpoint(directory, tensors, config)


def _against_the_target(module: PairHead, study: Study, recipe: Recipe) -> float:
    """Train a head that the target's own output matrix reads."""
    shake(module)
    deck, competition = Deck(study.lessons, recipe.lessons), Competition(study.head, study.words)

    def loss() -> Tensor:
        competition.draw()
        pairs = pack(deck.deal(), (NORMED,), recipe.depth)
        read = module.unroll(study, pairs)
        return fading([competition.loss(x, pairs.ahead[:, i]) for i, x in enumerate(read)])

    return fit(module, loss, recipe.steps, recipe.rate, recipe.tick)


def _sizes(target: Any) -> dict[str, Any]:
    return LayerSizes.like(target).config(target.vocab_size, target.max_position_embeddings)
