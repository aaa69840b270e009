"""Several processes that train one drafter, each on its share of every step (torchrun starts them).

A step's texts are cut into parts, as they are for gradient accumulation, and each process takes some: the sum of all
gradients is that of one process that takes every part in turn. Only the first process validates, has the target answer
and writes files.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

Found = TypeVar("Found")
FIRST = "0"
PATIENCE = timedelta(hours=24)  # others wait while the first has the target answer all prompts


class Crew:
    """This process as one of them, or alone if no others were started."""

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank, self.size = rank, size

    @classmethod
    def join(cls) -> Crew:
        """Join the processes that torchrun has started, if it has."""
        size = int(os.environ.get("WORLD_SIZE", "1"))
        if size == 1:
            return cls()
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        if not dist.is_initialized():
            dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo", timeout=PATIENCE)
        return cls(dist.get_rank(), size)

    @property
    def first(self) -> bool:
        """Whether this process validates and writes."""
        return self.rank == 0

    def mine(self, parts: list[Any]) -> list[Any]:
        """The parts of a step that fall to this process."""
        return parts[self.rank :: self.size]

    @torch.no_grad()
    def add_up(self, tensors: list[Tensor]) -> None:
        """All-reduce every tensor to the sum over all processes, in one exchange."""
        if self.size == 1:
            return
        flat = _flatten_dense_tensors(tensors)
        dist.all_reduce(flat)
        for tensor, whole in zip(tensors, _unflatten_dense_tensors(flat, tensors), strict=True):
            tensor.copy_(whole)

    @torch.no_grad()
    def level(self, tensors: list[Tensor]) -> None:
        """Give all processes the first one's tensors."""
        if not self.first:
            for tensor in tensors:
                tensor.zero_()
        self.add_up(tensors)

    def tell(self, make: Callable[[], Found]) -> Found:
        """Call `make` in the first process and return its result in all of them; the others wait for it."""
        if self.size == 1:
            return make()
        box: list[Any] = [make() if self.first else None]
        dist.broadcast_object_list(box, src=0, device=torch.device("cpu"))
        found: Found = box[0]
        return found

    def leave(self) -> None:
        """Leave the process group."""
        if self.size > 1 and dist.is_initialized():
            dist.destroy_process_group()


def speaks() -> bool:
    """Whether this process is the one that talks to the user."""
    return os.environ.get("RANK", FIRST) == FIRST
