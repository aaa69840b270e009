"""Counter-based noise: a pure function of (request seed, absolute position, purpose, token).

It has no state, so a draw does not depend on batching, padding or what was drafted before it.
The generator is Philox4x32-10 (Salmon et al., 2011): the key is the two halves of the seed, the counter is
(token // 4, position low, purpose, position high), and a token takes word `token % 4` of the four that come out.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

TARGET: Final = 0  # the target's own draw
DRAFT: Final = 1  # a drafter that samples independently of the target
ACCEPT: Final = 2  # acceptance tests of rejection rules
RESAMPLE: Final = 3  # the token after a rejection; never the stream of DRAFT

ROUNDS: Final = 10
MULTIPLIERS: Final = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS: Final = (0x9E3779B9, 0xBB67AE85)
LOW_32: Final = 0xFFFFFFFF
BELOW_ONE: Final = 1 - 2.0**-24  # the largest float32 under 1

Words = tuple[Tensor, Tensor, Tensor, Tensor]


def philox(counter: Words, key: tuple[Tensor, Tensor]) -> Words:
    """Philox4x32-10 on tensors of int64 that hold uint32; everything broadcasts."""
    if key[0].device.type != "cpu":
        return _rounds(*counter, *key)
    # numpy's operators start in a tenth of the time that torch's take, which is most of the time if draws are few.
    arrays = (part.numpy()[..., None] for part in (*counter, *key))  # numpy would warn when single numbers wrap
    a, b, c, d = (torch.from_numpy(word[..., 0]) for word in _rounds(*arrays))
    return a, b, c, d


def _rounds(a: Any, b: Any, c: Any, d: Any, left: Any, right: Any) -> tuple[Any, Any, Any, Any]:
    for _ in range(ROUNDS):
        # int64 products wrap, and their bits are those of the unsigned product.
        first, second = a * MULTIPLIERS[0], c * MULTIPLIERS[1]
        a, b = (second >> 32 & LOW_32) ^ b ^ left, second & LOW_32
        c, d = (first >> 32 & LOW_32) ^ d ^ right, first & LOW_32
        left, right = left + KEY_STEPS[0] & LOW_32, right + KEY_STEPS[1] & LOW_32
    return a, b, c, d


def words(seeds: Tensor, positions: Tensor, purpose: int, vocab: int, first: int = 0) -> Tensor:
    """Uniform 32-bit words, int64 [L, V], for the tokens of L draws with int64 [L] seeds and positions.

    The tokens are first .. first + V - 1, and `first` is a multiple of 4.
    """
    seeds, positions = seeds[:, None], positions[:, None]
    quads = first // 4 + torch.arange((vocab + 3) // 4, device=seeds.device)[None, :]
    counter = quads, positions & LOW_32, torch.full_like(positions, purpose), positions >> 32 & LOW_32
    four = philox(counter, (seeds & LOW_32, seeds >> 32 & LOW_32))
    return torch.stack(four, dim=-1).flatten(1)[:, :vocab]


def uniform(raw: Tensor) -> Tensor:
    """Words as float32 strictly between 0 and 1, finest near 0."""
    return ((raw.to(torch.float32) + 0.5) * 2.0**-32).clamp(max=BELOW_ONE)


def gumbel(seeds: Tensor, positions: Tensor, purpose: int, vocab: int, first: int = 0) -> Tensor:
    """Standard Gumbel noise, float32 [L, V], of tokens first .. first + V - 1; `first` is a multiple of 4.

    -log(-log u) rounds badly where u nears 1, which is where winners come from; with v = 1 - u that tail sits near 0,
    where float32 is finest, and reaches 22.9.
    """
    exponential = -torch.log1p(-uniform(words(seeds, positions, purpose, vocab, first)))
    return -torch.log(exponential)
