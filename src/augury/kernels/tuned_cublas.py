"""Products of many rows by the fastest of cuBLAS's algorithms that has the bits of the one it would pick itself.

cuBLAS picks by rule and is often 5 to 15 % slower than it could be. While graphs are captured every product that the
pass needs is timed, with the matrices of the model itself. Most algorithms add in one order and differ in speed alone,
so what was timed on one machine changes no token on another.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import cache
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor

from augury.config.files import cache_dir, read_bounded, write_text
from augury.kernels.cublas_lt import ALGORITHM_BYTES, ALIGNED, TYPES, CublasLt, Product, cublas_lt

LARGE = 1 << 22  # elements of a matrix, at least, for this to pay
MOST_ROWS = 128  # larger passes run at lower clocks, and what is fastest alone is not fastest among others
COLD = 256 << 20  # bytes of matrices that are read before the first is read again: several times a GPU's cache
LAUNCHES = 4  # at least, between two looks at the clock
FIRST_ROUNDS, LAST_ROUNDS, FINALISTS = 2, 9, 4
GAIN = 0.98  # of cuBLAS's time, at most
LARGEST_FILE = 1 << 20
TYPE_OF = {str(dtype): dtype for dtype in TYPES}
Run = Callable[[Tensor, Tensor], Tensor]
Chosen = dict[Product, bytes | None]


class Tuner:
    """Which algorithm each product takes."""

    def __init__(self, library: CublasLt, device: torch.device) -> None:
        self._library = library
        self._wanted: dict[Product, list[Tensor]] | None = None  # matrices of products that are yet to be tuned
        told = f"{torch.cuda.get_device_name(device)}, cublasLt {library.version}"
        self._file = cache_dir() / "products" / f"{hashlib.sha256(told.encode()).hexdigest()[:24]}.json"
        self._chosen = _read(self._file)  # None: cuBLAS's own choice

    def linear(self, x: Tensor, weight: Tensor) -> Tensor | None:
        """The product by the algorithm chosen for it; None where cuBLAS may choose."""
        product = Product.of(x, weight)
        if self._wanted is not None and product not in self._chosen and _worthwhile(product):
            self._wanted[product].append(weight)
        algorithm = self._chosen.get(product)
        if algorithm is None or not _plain(x) or not _plain(weight):
            return None
        try:
            return self._library.multiply(x, weight, algorithm)
        except RuntimeError:  # the file was not written by such a library after all
            self._chosen[product] = None
            return None

    @contextmanager
    def tuning(self) -> Iterator[None]:
        """Tune the products that are computed inside the block, and keep what is chosen for later starts."""
        self._wanted = defaultdict(list)
        try:
            yield
            wanted = self._wanted
        finally:
            self._wanted = None
        for product, weights in wanted.items():
            self._chosen[product] = fastest(self._library, product, weights)
        if wanted:
            _keep(self._file, self._chosen)


@cache
def tuner(device: torch.device) -> Tuner | None:
    """The GPU's tuner; None where there is no cublasLt."""
    library = cublas_lt(device) if device.type == "cuda" else None
    return None if library is None else Tuner(library, device)


@contextmanager
def tuning(device: torch.device) -> Iterator[None]:
    """Tune what is multiplied on this GPU inside the block."""
    tuned = tuner(device)
    with nullcontext() if tuned is None else tuned.tuning():
        yield


def linear(x: Tensor, weight: Tensor) -> Tensor | None:
    """The product by the algorithm that was chosen for its sizes; None where cuBLAS may choose."""
    if x.dtype != weight.dtype or (tuned := tuner(x.device)) is None:
        return None
    return tuned.linear(x, weight)


def fastest(library: CublasLt, product: Product, weights: list[Tensor]) -> bytes | None:
    """The fastest algorithm with cuBLAS's bits; None where it is hardly faster than cuBLAS's choice."""
    weights = _enough(weights)
    x = torch.randn(product.rows, product.depth, dtype=product.dtype, device=weights[0].device)
    runs: dict[bytes | None, Run] = {None: F.linear}
    for algorithm in library.algorithms(product):
        run = _by(library, algorithm)
        if _same_bits(run, x, weights[0]):
            runs[algorithm] = run
    first = _times(runs, x, weights, FIRST_ROUNDS)
    last = {algorithm: runs[algorithm] for algorithm in sorted(first, key=first.__getitem__)[:FINALISTS]}
    last[None] = F.linear
    times = _times(last, x, weights, LAST_ROUNDS)
    best = min(times, key=times.__getitem__)
    return best if times[best] < GAIN * times[None] else None


def _by(library: CublasLt, algorithm: bytes) -> Run:
    return lambda x, weight: library.multiply(x, weight, algorithm)


def _same_bits(run: Run, x: Tensor, weight: Tensor) -> bool:
    try:
        return torch.equal(run(x, weight), F.linear(x, weight))
    except RuntimeError:  # the library recommends it but cannot run it
        return False


def _enough(weights: list[Tensor]) -> list[Tensor]:
    """So many of the matrices that none is in the cache when its turn comes again; there may be fewer."""
    size = weights[0].numel() * weights[0].element_size()
    return weights[: max(1, -(-COLD // size))]


def _times(runs: dict[bytes | None, Run], x: Tensor, weights: list[Tensor], rounds: int) -> dict[bytes | None, float]:
    """Median milliseconds by turns, without a pause: clocks fall under load, for all of them alike."""
    events: dict[bytes | None, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {name: [] for name in runs}
    turns = max(LAUNCHES, len(weights))
    for _ in range(rounds):
        for name, run in runs.items():
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            for i in range(turns):
                run(x, weights[i % len(weights)])
            end.record()
            events[name].append((begin, end))
    torch.cuda.synchronize(x.device)
    return {name: median(begin.elapsed_time(end) for begin, end in pairs) for name, pairs in events.items()}


def _read(path: Path) -> Chosen:
    try:
        return {
            Product(int(rows), int(outs), int(depth), TYPE_OF[dtype]): _algorithm(written)
            for rows, outs, depth, dtype, written in json.loads(read_bounded(path, LARGEST_FILE))
        }
    except (OSError, ValueError, TypeError, KeyError):
        return {}


def _algorithm(written: str) -> bytes | None:
    algorithm = bytes.fromhex(written)
    if len(algorithm) not in (0, ALGORITHM_BYTES):  # the library would read past its end
        raise ValueError(written)
    return algorithm or None


def _keep(path: Path, chosen: Chosen) -> None:
    rows = [(*p[:3], str(p.dtype), "" if algorithm is None else algorithm.hex()) for p, algorithm in chosen.items()]
    with suppress(OSError):  # a directory that cannot be written to: tuned again at the next start
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(rows))


def _worthwhile(product: Product) -> bool:
    return product.dtype in TYPES and product.outs * product.depth >= LARGE and product.rows <= MOST_ROWS


def _plain(tensor: Tensor) -> bool:
    return tensor.is_contiguous() and tensor.data_ptr() % ALIGNED == 0
