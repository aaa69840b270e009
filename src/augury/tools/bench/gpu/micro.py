"""One kernel against its reference: the device's kernel face and torch's, on the same inputs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from augury.kernels import choose
from augury.kernels.torch_ops import TorchOps
from augury.tools.bench.gpu import micro_cases
from augury.tools.bench.gpu.micro_cases import KernelCase, Maker
from augury.tools.bench.gpu.rig import check_device
from augury.tools.bench.gpu.roofline import copy_speed
from augury.tools.bench.gpu.run import machine_of
from augury.tools.bench.gpu.shapes import fits, shape_of
from augury.tools.bench.gpu.verify_cases import Judges, device_judges, reference_judges, verification

Call = Callable[[], Any]
ROUNDS = 5  # of which the best counts
LEAST = {"cuda": 256 << 20, "cpu": 0}  # bytes touched between two uses of one input, so that no cache holds it
MOST_COPIES = 64
CASES: dict[str, Maker] = {**micro_cases.CASES, "verify": verification}


class Faces(NamedTuple):
    """One side of the comparison, the device's own or the reference: its kernels and its judges."""

    ops: Any
    judges: Judges


def measure_micro(
    kernel: str,
    shape: str,
    batches: list[int],
    tokens: int,
    context: int,
    device: str = "auto",
    steps: dict[int, float] | None = None,
) -> dict[str, Any]:
    """Time a kernel at every batch size, each request with 1 + `tokens` rows after `context` tokens.

    `steps` are the milliseconds of a whole step by batch size, if known: a row then has the kernel's share of it.
    """
    config = shape_of(shape)
    fits(shape, config, context + tokens)
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    check_device(device)
    where = torch.device(device)
    ours, reference = Faces(choose(where), device_judges(where)), Faces(TorchOps(), reference_judges)
    speed = copy_speed(where)
    rows = []
    for batch in batches:
        for case in CASES[kernel](config, batch, tokens, context, where):
            row = {"batch": batch, **_row(case, ours, reference, where, speed)}
            rows.append(row | _share(row["us"], (steps or {}).get(batch)))
    return {
        "kernel": kernel,
        "shape": shape,
        "k": tokens,
        "context": context,
        "face": type(ours.ops).__name__,
        "reference": type(reference.ops).__name__,
        **machine_of(where),
        "copy_tb_s": speed / 1e12,
        "rows": rows,
    }


def _share(micros: float, step_ms: float | None) -> dict[str, float]:
    return {} if step_ms is None else {"step_ms": step_ms, "of_step": micros / 1000 / step_ms}


def _row(case: KernelCase, ours: Faces, reference: Faces, device: torch.device, speed: float) -> dict[str, Any]:
    copies = min(MOST_COPIES, max(1, -(-LEAST[device.type] // max(1, case.bytes))))
    inputs = [case.make(i) for i in range(copies)]
    difference = _difference(case.run(ours, inputs[0]), case.run(reference, case.make(0)))
    mine, theirs = (
        _seconds([lambda faces=faces, given=given: case.run(faces, given) for given in inputs], device)  # type: ignore[misc]
        for faces in (ours, reference)
    )
    return {
        "case": case.name,
        "us": 1e6 * mine,
        "reference_us": 1e6 * theirs,
        "ratio": theirs / mine,
        "gb_s": case.bytes / mine / 1e9,
        "of_copy": case.bytes / mine / speed,
        "bytes": case.bytes,
        "difference": difference,
    }


def _difference(got: Tensor, want: Tensor) -> float:
    if not got.is_floating_point():
        return float((got != want).sum())  # tokens: how many differ
    return float((got.float() - want.float()).abs().max())


def _seconds(calls: list[Call], device: torch.device) -> float:
    """Seconds of one call, from the best round over all of them; on a GPU in a graph, where launches cost nothing."""
    for call in calls[:2]:
        call()
    if device.type != "cuda":
        return min(_host_seconds(calls) for _ in range(ROUNDS)) / len(calls)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    graph.replay()
    return min(_device_seconds(graph) for _ in range(ROUNDS)) / len(calls)


def _host_seconds(calls: list[Call]) -> float:
    begun = time.perf_counter()
    for call in calls:
        call()
    return time.perf_counter() - begun


def _device_seconds(graph: Any) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    graph.replay()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / 1000
