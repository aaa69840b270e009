"""The noise of each drafted position in vLLM's V1 runner, which draws a seeded request's tokens from a torch generator.

One draw moves the generator on by one row of noise, so the noise of the token `n` further on is its n-th next row. A
generator on a GPU can be set to any row. One on a CPU cannot: its states are kept instead, one for each position.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from augury.plugins.vllm.coupled import RULE, Coupled

Generators = dict[int, Any]
PROBED = 64  # width of the row that tells how a draw moves a generator


class ByOffset(Coupled):
    """Noise from the generators of a GPU, which can be set to any row."""

    def __init__(self, use_fp64: bool) -> None:
        self._use_fp64 = use_fp64

    def ahead(self, generators: Generators, counts: list[int], width: int) -> None:
        """Set each generator to the token after a whole draft (the bonus token), which vLLM draws first."""
        for i, generator in generators.items():
            generator.set_offset(generator.get_offset() + counts[i] * self._row(generator, width))

    def draw(self, logits: Any, counts: list[int], generators: Generators) -> Any:
        """A token for each row; generators are past all drafts and bonus tokens when it is called, and afterwards."""
        import torch
        from vllm.v1.sample.ops.topk_topp_sampler import empty_exponential_noise_like, sample_with_exponential_noise

        probs = logits.softmax(dim=-1, dtype=torch.float32)
        noise = empty_exponential_noise_like(probs, self._use_fp64)
        if len(generators) != len(counts):
            noise.exponential_()
        first = 0
        for i, count in enumerate(counts):
            if count and (generator := generators.get(i)) is not None:
                behind = generator.get_offset()
                generator.set_offset(behind - (count + 1) * self._row(generator, logits.shape[-1]))
                for row in range(first, first + count):
                    noise[row].exponential_(generator=generator)
                generator.set_offset(behind)
            first += count
        return sample_with_exponential_noise(probs, noise)

    def settle(self, generators: Generators, counts: list[int], taken: list[int], width: int) -> None:
        """Leave each generator where plain decoding would have left it."""
        for i, generator in generators.items():
            generator.set_offset(generator.get_offset() + (taken[i] - counts[i] - 1) * self._row(generator, width))

    def _row(self, generator: Any, width: int) -> int:
        return _measured(generator.device, width, self._use_fp64)


@functools.lru_cache(maxsize=8)
def _measured(device: Any, size: int, use_fp64: bool) -> int:
    """How far one row of noise moves a generator."""
    import torch

    spare = torch.Generator(device)
    before = spare.get_offset()
    torch.empty(size, device=device, dtype=torch.float64 if use_fp64 else torch.float32).exponential_(generator=spare)
    return int(spare.get_offset() - before)


class ByState(Coupled):
    """Noise from the generators of a CPU; `plain` is the draw of plain decoding, given a generator for each row."""

    def __init__(self, plain: Callable[..., tuple[Any, Any]]) -> None:
        self._plain, self._move = plain, _mover(plain)
        self._states: dict[int, list[Any]] = {}

    def ahead(self, generators: Generators, counts: list[int], width: int) -> None:
        """See ByOffset.ahead; also keeps the state of every position before."""
        self._states = {}
        for i, generator in generators.items():
            states = self._states[i] = [generator.get_state()]
            for _ in range(counts[i]):
                self._move(generator, width)
                states.append(generator.get_state())

    def draw(self, logits: Any, counts: list[int], generators: Generators) -> Any:
        """See ByOffset.draw."""
        rows, first = {}, 0
        for i, count in enumerate(counts):
            for place in range(count if i in generators else 0):
                rows[first + place] = _generator(self._states[i][place])
            first += count
        return self._plain(logits, rows, None, None)[0].long()

    def settle(self, generators: Generators, counts: list[int], taken: list[int], width: int) -> None:
        """See ByOffset.settle; after a whole draft the generator is there already."""
        for i, generator in generators.items():
            if taken[i] <= counts[i]:
                generator.set_state(self._states[i][taken[i]])


def _generator(state: Any) -> Any:
    import torch

    made = torch.Generator()
    made.set_state(state)
    return made


def _mover(plain: Callable[..., tuple[Any, Any]]) -> Callable[[Any, int], None]:
    """A function that moves a generator as one draw does, found by trying: releases differ and do not say."""
    import torch

    drawn = torch.Generator().manual_seed(1)
    plain(torch.zeros(1, PROBED), {0: drawn}, None, None)
    moves: tuple[Callable[[Any, int], Any], ...] = (
        lambda g, width: torch.randint(0, 2**31, (1,), generator=g, dtype=torch.long),  # a seed for the row's noise
        lambda g, width: torch.empty(width).exponential_(generator=g),
        lambda g, width: torch.empty(width, dtype=torch.float64).exponential_(generator=g),
    )
    for move in moves:
        tried = torch.Generator().manual_seed(1)
        move(tried, PROBED)
        if torch.equal(tried.get_state(), drawn.get_state()):
            return move
    raise ValueError(
        f'rejection_sample_method "{RULE}": this vLLM draws on a CPU in a way that Augury does not know; leave it out.'
    )
