"""Texts as batches with the target's features of every token, computed when they are needed.

Batches are a function of the seed and the number of the step alone, so that a resumed run gets the batches it would
have got. Texts of a batch are of similar length, so that there is little padding.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

from augury.model.foreign import decoder_layers, quietly
from augury.model.target import NORMED
from augury.train.corpus import Corpus

WIDTHS = 32  # widths of batches on a GPU are multiples of this
POOL = 32  # batches among which texts are sorted by length


@dataclass(slots=True)
class Batch:
    """Padded texts with the target's features of them."""

    tokens: Tensor  # int64 [B, T]
    starts: Tensor  # int64 [B]: where answers begin
    lengths: Tensor  # int64 [B]
    streams: Tensor  # [B, T, n * H]: what the drafter reads
    normed: Tensor  # [B, T, H]: what the target's output matrix reads
    noise: Tensor  # [B, T]: random numbers by the step, for drawing rows; a resumed run draws the same


class Order:
    """Which texts make up each step; none comes twice in an epoch."""

    def __init__(self, corpus: Corpus, size: int, longest: int, seed: int = 0) -> None:
        self.size, self._seed = min(size, len(corpus)), seed
        self._lengths = corpus.lengths.clamp(max=longest).tolist()
        self.steps_an_epoch = len(corpus) // self.size
        self._known, self._batches = -1, list[list[int]]()

    def texts(self, step: int) -> list[int]:
        """The texts of one step."""
        epoch, place = divmod(step, self.steps_an_epoch)
        return self._epoch(epoch)[place]

    def _epoch(self, epoch: int) -> list[list[int]]:
        if self._known != epoch:
            dice, numbers = Random(f"{self._seed} {epoch}"), list(range(len(self._lengths)))
            dice.shuffle(numbers)
            batches: list[list[int]] = []
            for first in range(0, len(numbers), POOL * self.size):
                pool = sorted(numbers[first : first + POOL * self.size], key=self._lengths.__getitem__)
                batches += [pool[i : i + self.size] for i in range(0, len(pool) - self.size + 1, self.size)]
            dice.shuffle(batches)
            self._known, self._batches = epoch, batches
        return self._batches


class Teacher:
    """The target as transformers runs it, with hooks that record the outputs of its layers."""

    def __init__(self, directory: Path, layers: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> None:
        from transformers import AutoModelForCausalLM

        with quietly():
            model: Any = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype, local_files_only=True)
        self.model = model.to(device).eval().requires_grad_(False)
        self.directory, self.device, self._layers, self._found = directory, device, layers, dict[int, Tensor]()
        self._kept: tuple[Tensor, Tensor, Tensor] | None = None  # the last batch, if it was all of its corpus
        self.embedding: Tensor = self.model.get_input_embeddings().weight
        self.head: Tensor = self.model.get_output_embeddings().weight
        stack = decoder_layers(self.model)
        self._watch(self.model.get_input_embeddings(), 0)
        for number, layer in enumerate(stack, 1):
            self._watch(layer, number)

    def _watch(self, module: nn.Module, number: int) -> None:
        if number in self._layers:
            module.register_forward_hook(lambda _m, _a, out: self._keep(number, out))

    def _keep(self, number: int, out: Any) -> None:
        self._found[number] = out if isinstance(out, Tensor) else out[0]

    def _width(self, longest: int) -> int:
        """The padded width of a batch: on a GPU there are few, since steps are recorded for each."""
        return -(-longest // WIDTHS) * WIDTHS if self.device.type == "cuda" else longest

    @torch.no_grad()
    def batch(self, corpus: Corpus, numbers: list[int], longest: int, step: int = 0) -> Batch:
        """Run the target over some texts, cut at `longest` tokens; padding is at the end, where no row sees it."""
        texts = [corpus.text(number)[:longest] for number in numbers]
        tokens = torch.zeros(len(texts), self._width(max(map(len, texts))), dtype=torch.int64)
        for row, text in zip(tokens, texts, strict=True):
            row[: len(text)] = text
        tokens = tokens.to(self.device)
        normed, streams = self._seen(tokens, keep=len(numbers) == len(corpus))
        lengths = torch.tensor([len(text) for text in texts], device=self.device)
        starts = corpus.starts[numbers].to(self.device)
        dice = torch.Generator().manual_seed(Random(f"{step} {numbers}").getrandbits(62))
        noise = torch.rand(tokens.shape, generator=dice).to(self.device)
        return Batch(tokens, starts, lengths, streams, normed, noise)

    def _seen(self, tokens: Tensor, keep: bool) -> tuple[Tensor, Tensor]:
        """The final states of a batch and its layers' streams; `keep` them for a next batch with the same texts."""
        if self._kept is not None and torch.equal(self._kept[0], tokens):
            return self._kept[1:]
        normed: Tensor = self.model.get_decoder()(input_ids=tokens, use_cache=False).last_hidden_state
        streams = torch.cat([normed if layer == NORMED else self._found[layer] for layer in self._layers], dim=2)
        self._kept = (tokens, normed, streams) if keep else None
        return normed, streams
