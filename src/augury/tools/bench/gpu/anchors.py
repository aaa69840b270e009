"""A peer's speed in the same case on the same kind of GPU: figures that were measured once, with their conditions."""

from __future__ import annotations

from typing import Any, NamedTuple

from augury.tools.bench.gpu.shapes import FIXED, Drafter

PEER, GPU = "vLLM 0.26.0", "H200"
CONDITIONS = {
    "peer": PEER,
    "measured": "2026-11-15",
    "gpu": f"one {GPU}",
    "torch": "2.11.0+cu130",
    "dtype": "bfloat16",
    "weights": "random",
    "sampling": "greedy, end of text ignored",
    "prefix_caching": False,
    "clock": "all requests at once, wall clock of the batch after a warm-up of 32 tokens",
}


class Anchor(NamedTuple):
    """The case a figure belongs to, without the batch size."""

    shape: str
    drafter: str
    tokens: int
    length: float
    prompt: int
    new: int


# tok/s over all requests, by batch size.
FIGURES: dict[Anchor, dict[int, int]] = {
    Anchor("llama-8b", "none", 0, 1.0, 128, 512): {1: 200, 8: 1497, 32: 5357, 64: 9482, 128: 14688},
    Anchor("llama-8b", "eagle3", 3, 3.0, 128, 512): {1: 451, 8: 3359, 32: 11114, 64: 16100, 128: 18812},
    Anchor("llama-8b", "eagle3", 5, 3.5, 128, 512): {1: 458, 8: 3307, 32: 10016, 64: 13392, 128: 9527},
    Anchor("llama-8b", "draft:llama-1b", 4, 3.5, 128, 512): {1: 253, 8: 1672, 32: 6195, 64: 9231, 128: 7346},
}


def peer_of(shape: str, drafter: Drafter, prompt: int, new: int, batch: int, gpu: str) -> dict[str, Any] | None:
    """The peer's figure for exactly this case; None if it was not measured or this is another kind of GPU."""
    case = Anchor(shape, drafter.name, drafter.tokens, drafter.length, prompt, new)
    speed = FIGURES.get(case, {}).get(batch)
    return {"name": PEER, "tok_s": speed} if speed and GPU in gpu and not _changed(drafter) else None


def _changed(drafter: Drafter) -> bool:
    """Whether the drafter has keys the peer did not have, such as a tree."""
    return bool(drafter.keys.keys() - FIXED)
