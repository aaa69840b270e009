"""Drafters with weights for hybrid targets, fitted to a few of their answers: some of their drafts are accepted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from dense_cases import SIZES
from formulas_dflash import Blocks, DFlashFormula, Shape, published_config
from gate import export, overfit
from hybrid_runs import VOCAB, Tokens
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, LlamaConfig

MASK = 4  # prompts are made of larger numbers
IDS = [0, 2]  # the target's layers that DFlash reads
BLOCK = 5
STEPS = 40


def draft_model(texts: Tokens, directory: Path, steps: int = STEPS) -> Path:
    """A small Llama that has read the texts."""
    torch.manual_seed(5)
    config = LlamaConfig(**{**SIZES, "num_hidden_layers": 2, "max_position_embeddings": 512}, bos_token_id=None)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    padded = nn.utils.rnn.pad_sequence([torch.tensor(text) for text in texts], batch_first=True, padding_value=-100)

    def loss() -> Tensor:
        return model(input_ids=padded.clamp(min=0), labels=padded).loss  # type: ignore[no-any-return]

    overfit(model, loss, steps)
    model.eval().save_pretrained(directory)
    return directory


def dflash(model: Any, texts: Tokens, begins: list[int], directory: Path, steps: int = STEPS) -> Path:
    """A DFlash head over the model's streams that has seen what the texts say from `begins` on."""
    torch.manual_seed(6)
    shape = Shape(inner=96)
    formula = DFlashFormula(shape)
    jobs = [_lesson(model, text, begin) for text, begin in zip(texts, begins, strict=True)]
    head = model.get_output_embeddings()

    def loss() -> Tensor:
        parts = []
        for streams, embedded, blocks, labels in jobs:
            known = labels >= 0
            parts.append(nn.functional.cross_entropy(head(formula(streams, embedded, blocks))[known], labels[known]))
        return torch.stack(parts).mean()

    overfit(formula, loss, steps)
    layers = model.config.get_text_config(decoder=True).num_hidden_layers
    return export(formula, published_config(shape, MASK, IDS, vocab=VOCAB, num_target_layers=layers), directory)


@torch.no_grad()
def _lesson(model: Any, text: list[int], begin: int) -> tuple[Tensor, Tensor, Blocks, Tensor]:
    """Every anchor of an answer at once: streams, blocks of masks, and the token at each mask's own position."""
    blocks = Blocks.at(list(range(begin, len(text) - 1)), BLOCK)
    ids = torch.tensor(text)
    tokens = torch.where(blocks.positions == blocks.anchor, ids[blocks.anchor], MASK)
    known = (blocks.positions > blocks.anchor) & (blocks.positions < len(text))
    labels = torch.where(known, ids[blocks.positions.clamp(max=len(text) - 1)], -1)
    return _streams(model, ids), model.get_input_embeddings()(tokens), blocks, labels


def _streams(model: Any, ids: Tensor) -> Tensor:
    """The residual streams after the layers that are read, side by side."""
    kept: dict[int, Tensor] = {}

    def keep(i: int) -> Any:
        return lambda _, args, out: kept.__setitem__(i, (out if isinstance(out, Tensor) else out[0])[0])

    hooks = [model.get_decoder().layers[i].register_forward_hook(keep(i)) for i in IDS]
    model(ids[None], use_cache=False)
    for hook in hooks:
        hook.remove()
    return torch.cat([kept[i] for i in IDS], dim=1)
