"""A short trial of a head at load: does it read the layers it was trained on?

Two mistakes in a head's config.json ruin its guesses silently. Some releases count a feature layer by its input,
others by its output, so every id may be off by one; and `norm_before_residual` is left out, or written the wrong way
round. So the head is tried on a page of text: where another reading guesses the target's own next tokens clearly
better than the one the files state, that one is taken, and a warning says so. A head that guesses nothing either way
is left as its files say.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from augury.kernels.rows import Rows
from augury.kernels.top import widened
from augury.model.errors import ModelError
from augury.model.heads.dflash import DFlash
from augury.model.heads.eagle3 import Eagle3Head
from augury.model.target import KVCache, Target
from augury.model.tokenizer import Tokenizer

logger = logging.getLogger("augury")

LENGTH = 128  # tokens read
FEWEST = 16  # guesses below which nothing is concluded
CLEARLY = 4.0  # standard errors between two readings
WORTHWHILE = 0.15  # share of guesses that must be right before a reading is accepted
BLOCK = 16  # cache rows of a block; the trial has a cache of its own
TEXT = (
    "The river rises in the hills above the town and runs for about forty miles before it reaches the sea. In spring, "
    "when the snow melts, the water is high and fast, and the old mill near the bridge is often closed for a week. "
    "Most people who live there work in the port or on small farms along the valley. The main street has a school, a "
    "library, two bakeries and a station with one train every hour. To get from the station to the port, walk down "
    "the hill, turn left at the church, and follow the path beside the water until you see the boats. The first boat "
    "leaves at six in the morning, and the last one comes back at nine in the evening."
)

Reading = TypeVar("Reading")


class Study(NamedTuple):
    """The target's pass over the text."""

    tokens: Tensor  # int64 [T]
    answers: Tensor  # int64 [T]: the target's own next token after each
    streams: dict[int, Tensor]  # [T, hidden], by the number of layers run


class ProbeResult(NamedTuple):
    """The results of one reading, one entry per guess."""

    logprob: Tensor  # float [N]: of the target's token
    hits: Tensor  # bool [N]


def settle_eagle3(head: Eagle3Head, directory: Path, longest: int) -> None:
    """Keep the reading of feature layers and of norm_before_residual under which the head guesses best."""
    stated = (head.features, head.flags.norm_before_residual)
    readings = [
        (layers, flag) for layers in _readings(head.features, head.target) for flag in (stated[1], not stated[1])
    ]
    study = _study(head.target, directory, longest, {i for layers, _ in readings for i in layers})
    if study is None:
        return

    def tried(reading: tuple[tuple[int, ...], bool]) -> ProbeResult:
        layers, head.flags.norm_before_residual = reading
        return _trial(_eagle3_guesses(head, study, layers), study.answers[1:-1])

    with _cache_for(head, len(study.tokens), head.target.device):
        head.features, head.flags.norm_before_residual = _best(readings, tried)
    if head.features != stated[0]:
        _warn_of_layers(stated[0], head.features)
    if head.flags.norm_before_residual != stated[1]:
        logger.warning(
            "the head guesses clearly better with norm_before_residual=%s than with %s, which its config.json says or "
            "leaves unsaid; that is how it is run. Correct the file to silence this.",
            head.flags.norm_before_residual,
            stated[1],
        )


def settle_dflash(head: DFlash, directory: Path, longest: int, masks: int) -> None:
    """Keep the reading of feature layers under which the head guesses best."""
    readings = _readings(head.features, head.target)
    study = _study(head.target, directory, longest, {i for layers in readings for i in layers})
    if study is None or len(study.tokens) <= 2 * masks:
        return
    anchors = range(masks, len(study.tokens) - masks, masks)
    answers = torch.cat([study.answers[a : a + masks] for a in anchors])

    def tried(layers: tuple[int, ...]) -> ProbeResult:
        return _trial(_dflash_guesses(head, study, layers, anchors, masks), answers)

    with _cache_for(head, len(study.tokens) + masks, head.target.device):
        best = _best(readings, tried)
    if best != head.features:
        _warn_of_layers(head.features, best)
        head.features = best


def _warn_of_layers(stated: tuple[int, ...], better: tuple[int, ...]) -> None:
    logger.warning(
        "the head's config.json names feature layers %s, but it guesses clearly better from %s (layers already run): "
        "those are read. Its ids count a layer by the other end; correct the file to silence this.",
        list(stated),
        list(better),
    )


def _readings(stated: tuple[int, ...], target: Target) -> list[tuple[int, ...]]:
    """The stated layers first, then one off either way, as far as the target has them."""
    shifted = [tuple(i + by for i in stated) for by in (0, 1, -1)]
    return [layers for layers in shifted if all(0 <= i <= target.num_layers for i in layers)]


@torch.inference_mode()
def _study(target: Target, directory: Path, longest: int, layers: Iterable[int]) -> Study | None:
    """One pass of the target over the text; None where it has no tokenizer to read it with."""
    try:
        ids = Tokenizer(directory).encode(TEXT)[: min(LENGTH, longest)]
    except ModelError:
        return None
    if len(ids) < FEWEST + 2 or max(ids) >= target.vocab_size:
        return None
    tokens, wanted = torch.tensor(ids, device=target.device), tuple(sorted(layers))
    with _cache_for(target, len(ids), target.device):
        scores = target.forward(text_rows(tokens, 0), wanted)
    return Study(tokens, scores.logits.argmax(1), dict(zip(wanted, scores.features, strict=True)))


def text_rows(tokens: Tensor, first: int, shift: int = 0) -> Rows:
    """A text as rows of one slot from cache row `first` on; `shift` as in drafters/rows.py."""
    logical = torch.arange(first, first + len(tokens), device=tokens.device)
    blocks = -(-(first + len(tokens)) // BLOCK)
    return Rows(
        tokens=tokens,
        positions=logical - shift,
        slots=torch.zeros_like(logical),
        context=logical + 1,
        base=logical,
        ancestors=torch.zeros_like(logical),
        write=logical + BLOCK,
        wanted=torch.arange(len(tokens)).to(tokens.device),
        block_tables=torch.arange(1, blocks + 1, device=tokens.device)[None],
        block_size=BLOCK,
        span=blocks * BLOCK,
        first=shift,
    )


@contextmanager
def _cache_for(network: Target | Eagle3Head | DFlash, tokens: int, device: torch.device) -> Iterator[None]:
    """A small cache for the time of a trial; a target that serves already gets its own back."""
    rows, before = (-(-tokens // BLOCK) + 1) * BLOCK, network.cache
    network.cache = KVCache.allocate(network.layer_shapes, rows, network.cache_dtype, device)
    try:
        yield
    finally:
        network.cache = before


def _eagle3_guesses(head: Eagle3Head, study: Study, layers: tuple[int, ...]) -> Tensor:
    """Logits after each pair (token t + 1, streams of token t) but the last."""
    streams = torch.cat([study.streams[i][:-2] for i in layers], dim=1)
    logits = head.forward(text_rows(study.tokens[1:-1], 1, shift=1), head.combine(streams), 0)[0]
    return widened(logits.float(), head.targets, head.target.vocab_size)


def _dflash_guesses(head: DFlash, study: Study, layers: tuple[int, ...], anchors: range, masks: int) -> Tensor:
    """Logits of the `masks` tokens after each anchor, with everything before it as context."""
    streams = torch.cat([study.streams[i] for i in layers], dim=1)
    guesses, read = [], 0
    for anchor in anchors:
        head.read(streams[read:anchor], text_rows(study.tokens[read:anchor], read))
        read = anchor
        tokens = study.tokens[anchor].repeat(masks + 1 - int(head.anchored))
        rows = text_rows(tokens, anchor)
        base, bits = torch.full_like(tokens, anchor), torch.full_like(tokens, (1 << len(tokens)) - 1)
        rows = replace(rows, context=base, base=base, ancestors=bits, wanted=rows.wanted[1 - int(head.anchored) :])
        guesses.append(head.fill(rows, rows.positions > anchor))
    return torch.cat(guesses)


def _trial(logits: Tensor, answers: Tensor) -> ProbeResult:
    """Compare with the target's tokens, except those outside the head's vocabulary."""
    scores = logits.float().log_softmax(1).gather(1, answers[:, None])[:, 0]
    known = scores > float("-inf")
    return ProbeResult(scores[known].cpu(), (logits.argmax(1) == answers)[known].cpu())


def _best(readings: list[Reading], tried: Callable[[Reading], ProbeResult]) -> Reading:
    """The first reading, unless another is clearly better."""
    stated = tried(readings[0])
    best, lead = readings[0], 0.0
    for reading in readings[1:]:
        gain = _gain(stated, tried(reading))
        if gain > lead:
            best, lead = reading, gain
    return best


def _gain(stated: ProbeResult, other: ProbeResult) -> float:
    """By how much the other reading is better per guess; 0 unless clearly better and useful."""
    difference, count = other.logprob - stated.logprob, len(other.logprob)
    if count < FEWEST or other.hits.float().mean() < WORTHWHILE or other.hits.sum() <= stated.hits.sum():
        return 0.0
    error = float(difference.std()) / math.sqrt(count)
    mean = float(difference.mean())
    return mean if mean > CLEARLY * error else 0.0
