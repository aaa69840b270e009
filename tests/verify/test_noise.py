"""Noise is Philox4x32-10, addressed by (seed, position, purpose, token), and its law is Gumbel's."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from augury.kernels import verify_numba_race as race
from augury.verify import noise

REPEATABLE = settings(deadline=None, derandomize=True)  # the first call compiles
CONSTANTS = {  # multipliers and key steps, by word size
    32: ((0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85)),
    64: ((0xD2E7470EE14C6C93, 0xCA5A826395121157), (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)),
}
PUBLISHED = [  # Random123's known answers for philox4x32-10: counter, key, words
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def oracle(counter: tuple[int, ...], key: tuple[int, ...], size: int) -> tuple[int, ...]:
    """Philox4x(size)-10 in Python's integers."""
    (ma, mb), (sa, sb) = CONSTANTS[size]
    mask = (1 << size) - 1
    (a, b, c, d), (left, right) = counter, key
    for _ in range(10):
        p, q = ma * a, mb * c
        a, b, c, d = (q >> size) ^ b ^ left, q & mask, (p >> size) ^ d ^ right, p & mask
        left, right = (left + sa) & mask, (right + sb) & mask
    return a, b, c, d


@pytest.mark.parametrize(("counter", "key", "words"), PUBLISHED)
def test_published_vectors(counter: tuple[int, ...], key: tuple[int, ...], words: tuple[int, ...]) -> None:
    tensors = [torch.tensor(x) for x in (*counter, *key)]
    assert tuple(int(w) for w in noise.philox(tuple(tensors[:4]), tuple(tensors[4:]))) == words
    assert tuple(int(w) for w in race.philox(*map(np.uint64, (*counter, *key)))) == words
    assert oracle(counter, key, 32) == words


def test_oracle_is_numpys_at_64_bits() -> None:
    key = np.array([0x0123456789ABCDEF, 0xFEDCBA9876543210], dtype=np.uint64)
    theirs = np.random.Philox(key=key, counter=np.array([5, 6, 7, 8], dtype=np.uint64)).random_raw(4)
    assert oracle((6, 6, 7, 8), tuple(map(int, key)), 64) == tuple(map(int, theirs))  # numpy counts before it draws


@REPEATABLE
@given(
    seed=st.integers(-(2**63), 2**63 - 1),
    position=st.integers(0, 2**40),
    purpose=st.integers(0, 3),
    token=st.integers(0, 500),
    spare=st.integers(1, 70),
)
def test_a_word_is_addressed_by_seed_position_purpose_and_token(
    seed: int, position: int, purpose: int, token: int, spare: int
) -> None:
    key = seed % 2**32, (seed >> 32) % 2**32
    counter = token // 4, position % 2**32, purpose, position >> 32
    expected = oracle(counter, key, 32)[token % 4]
    seeds, positions = torch.tensor([seed ^ 1, seed]), torch.tensor([position + 1, position])
    assert int(noise.words(seeds, positions, purpose, token + spare)[1, token]) == expected
    if purpose == noise.TARGET:
        assert race.word(token, np.uint64(seed % 2**64), np.uint64(position)) == expected


@REPEATABLE
@given(seed=st.integers(0, 2**63 - 1), position=st.integers(0, 2**33), block=st.integers(0, 9))
def test_the_lowest_word_of_a_block(seed: int, position: int, block: int) -> None:
    start = block * race.BLOCK
    words = noise.words(torch.tensor([seed]), torch.tensor([position]), noise.TARGET, start + race.BLOCK)[0, start:]
    assert race.lowest_word(block, np.uint64(seed), np.uint64(position)) == int(words.min())


@REPEATABLE
@given(st.integers(0, 2**32 - 1) | st.integers(0, 2000) | st.integers(2**32 - 2000, 2**32 - 1))
def test_gumbel_of_a_word(raw: int) -> None:
    v = float(noise.uniform(torch.tensor([raw])))
    assert 0 < v < 1
    exact = -math.log(-math.log1p(-v))
    # The relative error of log1p and log near 1 is what float32 allows.
    assert race.gumbel(np.uint32(raw)) == pytest.approx(exact, abs=3e-6)
    assert exact <= race.noise_bound(np.uint32(raw)) + float(race.SLACK)
    assert exact <= float(race.MOST_NOISE)


def test_the_winning_tail_is_fine_grained() -> None:
    tail = [race.gumbel(np.uint32(raw)) for raw in range(100)]
    assert tail[0] == pytest.approx(33 * math.log(2), abs=1e-5)
    assert len(set(tail)) == 100


def test_law_of_the_noise() -> None:
    g = noise.gumbel(torch.tensor([1, 2, 3, -4]), torch.tensor([0, 0, 7, 2**35]), noise.TARGET, 250_001).double()
    count = g.numel()
    assert float(g.mean()) == pytest.approx(np.euler_gamma, abs=5 * math.sqrt(math.pi**2 / 6 / count))
    assert float(g.var()) == pytest.approx(math.pi**2 / 6, abs=0.02)
    for height in (-1.5, 0.0, 2.0, 5.0, 9.0):
        p = -math.expm1(-math.exp(-height))
        assert int((g > height).sum()) == pytest.approx(count * p, abs=5 * math.sqrt(count * p * (1 - p)))


def test_streams_differ() -> None:
    def words(seed: int, position: int, purpose: int) -> list[int]:
        return noise.words(torch.tensor([seed]), torch.tensor([position]), purpose, 8)[0].tolist()

    keys = [(s, p, u) for s in (0, 1, 2**32) for p in (0, 1, 2**32) for u in range(4)]
    assert len({tuple(words(*key)) for key in keys}) == len(keys)
