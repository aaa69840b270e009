"""Every variant of the draw's Triton kernels, for compile_kernels.py."""

from __future__ import annotations

from dataclasses import replace

import torch
from draw_oracle import roots, sampling

from augury.kernels import (
    block_triton,
    draw_triton,
    edits_triton,
    peak_triton,
    probs_triton,
    rejection_triton,
    share_triton,
    standard_triton,
    top_triton,
)
from augury.verify.sampling import Masks
from augury.verify.tree import Draft

MODULES = (
    block_triton,
    draw_triton,
    edits_triton,
    peak_triton,
    probs_triton,
    rejection_triton,
    share_triton,
    standard_triton,
    top_triton,
)
KERNELS = {
    "find_best",
    "find_peaks",
    "join_peaks",
    "narrow",
    "tighten",
    "list_contenders",
    "settle",
    "list_edits",
    "top_of_chunk",
    "top_of_line",
    "weigh",
    "write_probs",
    "find_chances",
    "follow",
    "sum_left",
    "race_left",
    "finish",
    "descend",
    "sum_heights",
    "find_end",
}


def launch(few: bool, architecture: int) -> None:
    """The draw of plain lines, of edited ones unless there are to be few, drafters' choices, distributions, rules."""
    lines, vocab = 32, 128_256
    logits = torch.empty(lines, vocab, dtype=torch.bfloat16)
    plain, params = roots(lines, plain=True), sampling()
    draw_triton.draw(logits, plain, params)
    if not few:
        edited = replace(plain, plain=False, masks=Masks(torch.zeros(4, vocab // 32, dtype=torch.int32), plain.slots))
        full = sampling()
        full.counts, full.bias = torch.zeros(1, vocab, dtype=torch.int32), torch.zeros(1, vocab)
        full.in_prompt = torch.zeros(1, vocab, dtype=torch.bool)
        draw_triton.draw(logits, edited, full)
    share_triton.contest(logits, torch.empty(lines), plain, params, 64)
    peak_triton.argmax(logits, torch.zeros(vocab, dtype=torch.int64))
    top_triton.top_children(logits, 4)
    probs_triton.probabilities(logits, plain, params)
    draft = Draft.empty(8, 3)
    draft.probs = torch.empty(8, 3, vocab)
    ones = torch.zeros(8, dtype=torch.int64)
    for judge in (standard_triton.standard, block_triton.block):
        judge(logits, plain, params, ones, draft, torch.zeros(8, 3), ones, ones)
