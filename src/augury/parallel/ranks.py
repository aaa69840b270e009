"""The ranks of one engine and how they communicate: gloo between CPUs, NCCL between GPUs.

Two channels. `work` carries tensors during a forward pass, and every rank takes part in each exchange. `control`
carries what rank 0 has decided, as JSON: it may be silent for days, so it never times out; a rank that dies closes its
sockets, which ends both channels at once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from augury.parallel.errors import RanksLost

PATIENCE = timedelta(minutes=10)  # a rank may compile kernels that another finds in its cache
FOR_EVER = timedelta(days=3650)
HEAD = 512  # int64 words of a message's first piece: most have no second
LOOPBACK = "127.0.0.1"
OUT_OF_STEP = (
    "a collective operation outside a pass: only rank 0 would take part in it. A drafter on the host must not run the "
    "model; use tensor_parallel_size=1 with it."
)


CLOSED = "they were told to shut down"


class Ranks:
    """This process as one of the ranks that share a model."""

    def __init__(self, store: Any, rank: int, size: int, device: torch.device, loopback: bool = True) -> None:
        """Connect to the others through `store`; with `loopback` all of them are on this machine."""
        self.rank, self.size, self.device = rank, size, device
        self.explain: Callable[[str], str] = str  # adds what is known of the ranks' processes to an error
        self.check: Callable[[], None] = _nothing  # raises RanksLost if one of them has ended
        self._together = False
        self._control: Any = _gloo(store, "control", rank, size, FOR_EVER, loopback)
        self._work: Any
        if device.type == "cuda":
            torch.cuda.set_device(device)
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = PATIENCE
            self._work = dist.ProcessGroupNCCL(dist.PrefixStore("work", store), rank, size, options)
        else:
            self._work = _gloo(store, "work", rank, size, PATIENCE, loopback)

    @staticmethod
    def arrive(store: Any, rank: int) -> None:
        """Announce in the store that a rank has started."""
        store.set(f"rank {rank}", "here")

    @staticmethod
    def arrived(store: Any, rank: int) -> bool:
        """Whether a rank has announced itself in the store."""
        return bool(store.check([f"rank {rank}"]))

    # --- in a pass ---------------------------------------------------------------------------------------------------

    @contextmanager
    def together(self) -> Iterator[None]:
        """Enclose what all ranks run at the same time; an error in it leaves them out of step for good."""
        before, self._together = self._together, True
        try:
            yield
        except RanksLost:
            raise
        except Exception as error:
            raise RanksLost(
                f"rank {self.rank} failed during a forward pass ({type(error).__name__}: {error})"
            ) from error
        finally:
            self._together = before

    def gather(self, x: Tensor, widths: list[int]) -> Tensor:
        """The columns of all ranks side by side: x is [R, widths[rank]], the result [R, sum of widths]."""
        widest, rows = max(widths), len(x)
        if x.shape[1] < widest:
            x = torch.nn.functional.pad(x, (0, widest - x.shape[1]))
        out = x.new_empty(self.size * rows, widest)
        with self._exchange():
            self._work._allgather_base(out, x.contiguous()).wait()
        if rows == 1 and min(widths) == widest:
            return out.view(1, -1)
        parts = out.view(self.size, rows, widest).unbind(0)
        return torch.cat([part[:, :width] for part, width in zip(parts, widths, strict=True)], dim=1)

    def total(self, x: Tensor) -> Tensor:
        """All-reduce x in place to the sum over all ranks."""
        return self._reduce(x, dist.ReduceOp.SUM)

    def largest(self, x: Tensor) -> Tensor:
        """All-reduce x in place to the maximum over all ranks, element by element."""
        return self._reduce(x, dist.ReduceOp.MAX)

    def least(self, number: int) -> int:
        """The smallest `number` of all ranks."""
        return -int(self.largest(torch.tensor([-number], device=self.device)).item())

    def _reduce(self, x: Tensor, by: Any) -> Tensor:
        options = dist.AllreduceOptions()
        options.reduceOp = by
        with self._exchange():
            self._work.allreduce([x], options).wait()
        return x

    # --- between passes ----------------------------------------------------------------------------------------------

    def tell(self, message: Any) -> None:
        """Send a message to all other ranks, as rank 0."""
        words = _as_words(json.dumps(message, separators=(",", ":")).encode())
        self._broadcast(words[:HEAD], 0)
        if len(words) > HEAD:
            self._broadcast(words[HEAD:], 0)

    def hear(self) -> Any:
        """Wait for rank 0's next message, as another rank."""
        words = torch.zeros(HEAD, dtype=torch.int64)
        self._broadcast(words, 0)
        rest = _words_of(int(words[0])) - HEAD
        if rest > 0:
            more = torch.zeros(rest, dtype=torch.int64)
            self._broadcast(more, 0)
            words = torch.cat([words, more])
        return json.loads(_as_bytes(words))

    def close(self) -> None:
        """Drop the channels before the interpreter shuts down: at that point torch's threads may abort the process."""
        self._control = self._work = None

    def abort(self) -> None:
        """Release a rank whose GPU waits for another that will never answer."""
        if self.device.type == "cuda" and self._work is not None:
            self._work.abort()

    def _broadcast(self, words: Tensor, root: int) -> None:
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = root, 0
        if self._control is None:
            raise RanksLost(self.explain(CLOSED))
        try:
            self._control.broadcast([words], options).wait()
        except RuntimeError as error:
            raise RanksLost(self.explain(_first_line(error))) from None

    @contextmanager
    def _exchange(self) -> Iterator[None]:
        if not self._together:
            raise RuntimeError(OUT_OF_STEP)
        if self._work is None:
            raise RanksLost(self.explain(CLOSED))
        try:
            yield
        except RuntimeError as error:
            raise RanksLost(self.explain(_first_line(error))) from None


def _nothing() -> None:
    """Check nothing: there are no processes to watch."""


def _words_of(length: int) -> int:
    """The int64 words of a message of `length` bytes: one for the length, the bytes, and padding up to HEAD."""
    return max(HEAD, 1 + -(-length // 8))


def _as_words(body: bytes) -> Tensor:
    words = torch.zeros(_words_of(len(body)), dtype=torch.int64)
    words[0] = len(body)
    if body:
        words[1:].view(torch.uint8)[: len(body)] = torch.frombuffer(bytearray(body), dtype=torch.uint8)
    return words


def _as_bytes(words: Tensor) -> bytes:
    return words[1:].view(torch.uint8)[: int(words[0])].numpy().tobytes()


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def _gloo(store: Any, name: str, rank: int, size: int, timeout: timedelta, loopback: bool) -> Any:
    gloo: Any = dist.ProcessGroupGloo
    options = gloo._Options()
    options._devices = [gloo.create_device(hostname=LOOPBACK) if loopback else gloo.create_default_device()]
    options._timeout = timeout
    return gloo(dist.PrefixStore(name, store), rank, size, options)
