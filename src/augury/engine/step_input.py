"""A planned pass: what rank 0 sends to the device, and to other ranks."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from augury.engine.masks import GroupMasks
from augury.engine.rows import StepShape


class StepInput(NamedTuple):
    """A planned pass in the form that the device reads."""

    segments: Tensor  # int64 [8, G], see Segments.pack
    shape: StepShape
    logits_rows: int  # lines in use
    requests: int  # groups in use
    masks: GroupMasks | None = None  # grammar masks, if a request has a grammar
    rests: bool = False  # no request has a draft or may have one next: the drafter may rest


def packed(step_input: StepInput) -> list[Any]:
    """A planned pass as plain numbers, to be sent to other ranks."""
    masks = step_input.masks
    told = None if masks is None else [masks.bits.tolist(), masks.begin.tolist(), masks.counts.tolist(), masks.most]
    table = step_input.segments.tolist()
    return [table, list(step_input.shape), step_input.logits_rows, step_input.requests, told, step_input.rests]


def unpacked(numbers: tuple[Any, ...], device: torch.device) -> StepInput:
    """The planned pass from plain numbers."""
    table, shape, logits_rows, requests, told, rests = numbers
    masks = None
    if told is not None:
        bits = torch.tensor(told[0], dtype=torch.int32, device=device)
        begin, counts = (torch.tensor(part, dtype=torch.int64, device=device) for part in told[1:3])
        masks = GroupMasks(bits, begin, counts, told[3])
    segments = torch.tensor(table, dtype=torch.int64)
    return StepInput(segments, StepShape(*shape), logits_rows, requests, masks, rests)
