"""Measure every drafter at every batch size on one set of weights, and report each row as it comes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from augury.config.errors import ConfigError
from augury.tools.bench.gpu.anchors import CONDITIONS, peer_of
from augury.tools.bench.gpu.rig import Bench, Rig, Sizes, bench_of
from augury.tools.bench.gpu.shapes import Drafter, drafter_of, fits, shape_of

WARM_UP = 32  # tokens
TRIES = 3  # runs at most, until one captures no graph
BEATS, COUNTED, IDLE = 24, 4, 64  # decode steps: timed by part, with kernels counted, timed in a row
Row = dict[str, Any]


class OutOfTime(Exception):
    """The time limit of --minutes is over."""


class Timed(NamedTuple):
    """The time, steps and new tokens of a whole batch."""

    seconds: float
    steps: int
    tokens: int


def measure(
    shape: str = "llama-8b",
    drafters: Sequence[str] = ("none",),
    batches: Sequence[int] = (1, 8, 32),
    k: int | None = None,
    length: float | None = None,
    prompt: int = 128,
    new: int = 512,
    device: str = "auto",
    eager: bool = False,
    minutes: float = 0.0,
    detail: bool = True,
    extra: dict[str, Any] | None = None,
    batched: int | None = None,
    exact: bool = False,
    quantization: str | None = None,
    kv_cache_dtype: str = "auto",
    on_row: Callable[[Row], None] = lambda row: None,
    say: Callable[[str], None] = lambda words: None,
) -> dict[str, Any]:
    """Run the bench and return its report as one dictionary; `extra` are further keys of speculative_config."""
    import torch

    from augury.model.errors import ModelError
    from augury.tools.bench.gpu.roofline import copy_speed

    config = shape_of(shape)
    sizes = Sizes(prompt, new, max(batches))
    fits(shape, config, sizes.length)
    if batched is not None and batched < max(batches):
        raise ConfigError(f"--batched-tokens {batched}: every request needs a row; write {max(batches)} or more.")
    names = dict.fromkeys(drafters)  # each once
    if not names:
        raise ConfigError("--drafter: name at least one, for example none or draft:SHAPE.")
    wanted = [drafter_of(name, config, k, length, extra if name != "none" else None) for name in names]
    deadline = time.monotonic() + 60 * minutes if minutes else float("inf")
    begun = time.perf_counter()
    say(f"making {shape}")
    with bench_of(config, wanted, sizes, device, eager, batched, exact, quantization, kv_cache_dtype) as bench:
        where = bench.target.device
        report: dict[str, Any] = {
            "shape": shape,
            "prompt": prompt,
            "new": new,
            "eager": eager,
            "exact": exact,
            "quantization": quantization,
            "kv_cache_dtype": kv_cache_dtype,
            "batched": batched,
            "spec": extra or None,
            **machine_of(where),
            "peer": CONDITIONS,
            "copy_tb_s": copy_speed(where) / 1e12,
            "making_s": time.perf_counter() - begun,
            "rows": [],
            "left_out": [],
        }
        for drafter in wanted:
            try:
                _measure_drafter(bench, drafter, batches, report, deadline, detail, on_row, say)
            except OutOfTime:
                _leave_out(report, drafter, batches, f"the {minutes:g} minutes were over")
            except (ModelError, torch.OutOfMemoryError) as error:  # what is measured already is still reported
                _leave_out(report, drafter, batches, str(error).splitlines()[0])
    return report


def _leave_out(report: dict[str, Any], drafter: Drafter, batches: Sequence[int], why: str) -> None:
    done = sum(row["drafter"] == drafter.name for row in report["rows"])
    since = f" from batch {batches[done]} on" if done else ""
    report["left_out"].append(f"{drafter.name}{since}: {why}")


def _measure_drafter(
    bench: Bench,
    drafter: Drafter,
    batches: Sequence[int],
    report: dict[str, Any],
    deadline: float,
    detail: bool,
    on_row: Callable[[Row], None],
    say: Callable[[str], None],
) -> None:
    from augury.tools.bench.gpu.clock import Marks

    _check(deadline)
    say(f"building {drafter.name}")
    with bench.rig(drafter) as rig:
        marks = Marks(rig.engine)
        for batch in batches:
            say(f"{drafter.name}, batch {batch}")
            row = _row(rig, bench, report, batch, marks, deadline, detail)
            report["rows"].append(row)
            on_row(row)


def _row(rig: Rig, bench: Bench, report: dict[str, Any], batch: int, marks: Any, deadline: float, detail: bool) -> Row:
    drafter, sizes = rig.drafter, bench.sizes
    timed, tries = _timed(rig, batch, sizes, deadline)
    speed = timed.tokens / timed.seconds
    row: Row = {
        "shape": report["shape"],
        "drafter": drafter.name,
        "k": drafter.tokens,
        "length": drafter.length,
        "batch": batch,
        "tok_s": speed,
        "seconds": timed.seconds,
        "steps": timed.steps,
        "runs": tries,
        "step_ms": 1000 * timed.seconds / timed.steps,
        "tokens_a_step": timed.tokens / timed.steps / batch,
        "peer": None
        if any(report[name] for name in ("eager", "exact", "batched", "quantization"))  # the peer had none of these
        or report["kv_cache_dtype"] != "auto"
        else peer_of(report["shape"], drafter, sizes.prompt, sizes.new, batch, report["gpu"]),
        **_memory(rig),
    }
    if row["peer"]:
        row["ratio"] = speed / row["peer"]["tok_s"]
    row |= _detail(rig, batch, sizes, marks) if detail else {"split": None, "kernels": None, "idle": None}
    return row | _share(row, report, rig, sizes)


def _timed(rig: Rig, batch: int, sizes: Sizes, deadline: float) -> tuple[Timed, int]:
    """The wall clock of a batch after a warm-up; run again if a graph was captured meanwhile, up to three times."""
    _whole(rig, batch, sizes.prompt, min(WARM_UP, sizes.new), deadline)
    tries = 0
    while True:
        tries, before = tries + 1, graphs_of(rig)
        timed = _whole(rig, batch, sizes.prompt, sizes.new, deadline)
        if tries == TRIES or graphs_of(rig) == before:
            return timed, tries


def _whole(rig: Rig, batch: int, prompt: int, new: int, deadline: float) -> Timed:
    engine = rig.engine
    steps, tokens = engine.stats.steps, engine.stats.generation_tokens
    requests = rig.load(batch, prompt, new)
    rig.wait()
    begun = time.perf_counter()
    try:
        while engine.busy:
            engine.step()
            _check(deadline)
        rig.wait()
        seconds = time.perf_counter() - begun
    finally:
        rig.drop(requests)
    return Timed(seconds, engine.stats.steps - steps, engine.stats.generation_tokens - tokens)


def _detail(rig: Rig, batch: int, sizes: Sizes, marks: Any) -> Row:
    """Take a few steps apart, at the context length that the timed run has halfway."""
    from augury.tools.bench.gpu.clock import beats, idle_of, split_of
    from augury.tools.bench.gpu.counting import kernels_a_step

    prompt = sizes.prompt + sizes.new // 2
    reading = -(-batch * prompt // rig.engine.scheduler.token_budget)  # steps with prefill: the first already decode
    wanted = (reading + BEATS + COUNTED + IDLE + 2) * (rig.drafter.tokens + 1)
    requests = rig.load(batch, prompt, min(wanted, sizes.length - prompt))
    try:
        idle = idle_of(rig, IDLE)  # first: a profiler slows down every launch after it
        return {"idle": idle, "split": split_of(beats(rig, marks, BEATS)), "kernels": kernels_a_step(rig, COUNTED)}
    finally:
        rig.drop(requests)


def _share(row: Row, report: dict[str, Any], rig: Rig, sizes: Sizes) -> Row:
    """The bytes a step must read, and the share of its time that this alone would take."""
    from augury.tools.bench.gpu.roofline import step_bytes

    itemsize = 2 if rig.engine.target.device.type == "cuda" else 4
    layers = 1 if report["quantization"] and itemsize == 2 else itemsize
    context = sizes.prompt + sizes.new / 2
    parts = step_bytes(shape_of(report["shape"]), rig.drafter, row["batch"], context, itemsize, layers)
    parts["target_kv"] *= rig.engine.target.cache.keys[0].element_size() / itemsize
    least = sum(parts.values()) / (report["copy_tb_s"] * 1e12)
    return {"bytes": parts, "roofline_ms": 1000 * least, "roofline": 1000 * least / row["step_ms"]}


def graphs_of(rig: Rig) -> int:
    """CUDA graphs captured so far."""
    return int(getattr(rig.engine.runner.captured, "graphs", 0))


def _memory(rig: Rig) -> Row:
    import torch

    cuda = rig.engine.target.device.type == "cuda"
    return {
        "graphs": graphs_of(rig),
        "capture_s": float(getattr(rig.engine.runner.captured, "seconds", 0.0)),
        "memory_gib": torch.cuda.max_memory_reserved() / 2**30 if cuda else None,
    }


def machine_of(device: Any) -> dict[str, Any]:
    """The device, and the versions of torch and triton."""
    import torch

    from augury.observe.machine import versions_of

    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    return {"device": device.type, "gpu": name, "versions": versions_of({"torch": "torch", "triton": "triton"})}


def _check(deadline: float) -> None:
    if time.monotonic() > deadline:
        raise OutOfTime
