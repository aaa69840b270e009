"""A target's answers to many prompts, as token ids: the text that drafters are trained on.

A drafter must guess what the target says, not what people wrote, so prompts are kept and answers are generated anew.
Only token ids are stored (a million tokens are 4 MB); their features are computed again whenever a batch needs them,
which costs less than reading them from a disk.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from augury.config.errors import ConfigError
from augury.config.sampling import SamplingParams

FORMAT = "augury-corpus-1"
TEMPERATURE = 0.8  # of sampled answers
SHORTEST = 3  # tokens of an answer; there is nothing to guess in less
AT_ONCE = 8192  # prompts per call of the engine: it is seldom short of work, and the progress bar moves now and then


@dataclass
class Corpus:
    """Prompts with their answers, end to end."""

    tokens: Tensor  # int32 [N]
    starts: Tensor  # int64 [S]: where each answer begins in its own text
    lengths: Tensor  # int64 [S]: prompt and answer
    sampled: Tensor  # bool [S]: drawn with a temperature, not greedy
    about: dict[str, Any]  # which target, which prompts, how

    def __post_init__(self) -> None:
        self._ends = self.lengths.cumsum(0)

    def __len__(self) -> int:
        return len(self.lengths)

    def text(self, number: int) -> Tensor:
        """Token ids of one prompt and its answer, int64 [T]."""
        end = int(self._ends[number])
        return self.tokens[end - int(self.lengths[number]) : end].long()

    def within(self, longest: int) -> Corpus:
        """The texts with at least SHORTEST tokens of answer among their first `longest` tokens."""
        kept = self.starts + SHORTEST <= self.lengths.clamp(max=longest)
        if kept.all():
            return self
        tokens = self.tokens[kept.repeat_interleave(self.lengths)]
        return Corpus(tokens, self.starts[kept], self.lengths[kept], self.sampled[kept], self.about)

    def save(self, path: Path) -> None:
        """Write the corpus to one file."""
        tensors = {name: getattr(self, name) for name in ("tokens", "starts", "lengths", "sampled")}
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        save_file(tensors, fresh, {"format": FORMAT, "about": json.dumps(self.about)})
        os.replace(fresh, path)  # a killed process leaves no partial file

    @classmethod
    def load(cls, path: Path) -> Corpus:
        """Read what save wrote."""
        strange = ConfigError(
            f"{path} is not a corpus of this version, or is truncated; remove it, and `augury train` rebuilds it."
        )
        try:
            with safe_open(path, framework="pt") as file:
                said = file.metadata() or {}
                if said.get("format") != FORMAT:
                    raise strange
                tensors = {name: file.get_tensor(name) for name in ("tokens", "starts", "lengths", "sampled")}
        except SafetensorError:
            raise strange from None
        return cls(**tensors, about=json.loads(said["about"]))

    def __add__(self, other: Corpus) -> Corpus:
        """The texts of both."""
        pairs = ((getattr(self, name), getattr(other, name)) for name in ("tokens", "starts", "lengths", "sampled"))
        tokens, starts, lengths, sampled = (torch.cat(pair) for pair in pairs)
        return Corpus(tokens, starts, lengths, sampled, self.about)

    @classmethod
    def of(cls, texts: Sequence[tuple[list[int], list[int], bool]], about: dict[str, Any]) -> Corpus:
        """From (prompt, answer, sampled) triples."""
        flat = [token for prompt, answer, _ in texts for token in (*prompt, *answer)]
        return cls(
            torch.tensor(flat, dtype=torch.int32),
            torch.tensor([len(prompt) for prompt, _, _ in texts]),
            torch.tensor([len(prompt) + len(answer) for prompt, answer, _ in texts]),
            torch.tensor([sampled for _, _, sampled in texts]),
            about,
        )


def answer(
    llm: Any,
    prompts: list[list[int]],
    length: int,
    temperature: float = TEMPERATURE,
    sampled_share: float = 0.5,
    about: dict[str, Any] | None = None,
    tick: Callable[[int], None] = lambda done: None,
) -> Corpus:
    """Have the target answer every prompt, some greedily and some with a temperature, each with a seed of its own.

    A greedy text repeats itself more than served text does; drafters trained only on such text are worse on the rest.
    """
    texts: list[tuple[list[int], list[int], bool]] = []
    for first in range(0, len(prompts), AT_ONCE):
        some = prompts[first : first + AT_ONCE]
        drawn = [_is_sampled(first + i, sampled_share) for i in range(len(some))]
        params = [
            SamplingParams(
                temperature=temperature if sampled else 0.0, seed=first + i, max_tokens=length, detokenize=False
            )
            for i, sampled in enumerate(drawn)
        ]
        outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in some], params, use_tqdm=False)
        for prompt, output, sampled in zip(some, outputs, drawn, strict=True):
            texts.append((prompt, output.outputs[0].token_ids, sampled))
        tick(len(texts))
    kept = [text for text in texts if len(text[1]) >= SHORTEST]
    return Corpus.of(kept, (about or {}) | {"temperature": temperature, "sampled": sampled_share, "length": length})


def _is_sampled(number: int, share: float) -> bool:
    """Spread evenly: with a share of a half, every other one."""
    return int((number + 1) * share) > int(number * share)
