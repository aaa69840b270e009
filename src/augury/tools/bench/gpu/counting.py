"""How many kernels a step launches, and which of them take the time."""

from __future__ import annotations

from collections import Counter
from typing import Any

from torch.autograd import DeviceType
from torch.utils._python_dispatch import TorchDispatchMode

from augury.tools.bench.gpu.rig import Rig

SHOWN = 12  # kernels listed
NO_KERNELS = ("empty", "empty_strided", "empty_like", "resize_", "detach", "set_")  # they move no data


def kernels_a_step(rig: Rig, steps: int) -> dict[str, Any] | None:
    """Kernels (on a CPU, torch's operations) per decode step of the queued requests; None if there is no such step."""
    rig.engine.step()
    while rig.engine.busy and not rig.engine.last.decoding_only:  # the first such step may meet a new shape, too
        rig.engine.step()
    while rig.engine.flights:
        rig.engine.land()
    count = _on_gpu if rig.engine.target.device.type == "cuda" else _on_cpu
    depth, rig.engine.depth = rig.engine.depth, 0  # so that every step launches and finishes one pass
    try:
        return count(rig, steps) if rig.engine.busy else None
    finally:
        rig.engine.depth = depth


def _run(rig: Rig, steps: int) -> int:
    done = 0
    while rig.engine.busy and done < steps:
        rig.engine.step()
        done += 1
    rig.wait()
    return done


def _on_gpu(rig: Rig, steps: int) -> dict[str, Any]:
    from torch.profiler import ProfilerActivity, profile

    rig.wait()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        done = _run(rig, steps)
    kernels, copies, top = 0, 0, []
    for entry in profiler.key_averages():
        if entry.device_type != DeviceType.CUDA or entry.self_device_time_total <= 0:
            continue  # what the host or the profiler did
        if entry.key.startswith(("Memcpy", "Memset")):
            copies += entry.count
        else:
            kernels += entry.count
        spent = entry.self_device_time_total / 1000 / done
        top.append({"name": entry.key, "ms": spent, "count": entry.count / done})
    top.sort(key=lambda entry: -entry["ms"])
    return {"steps": done, "kernels": kernels / done, "copies": copies / done, "top": top[:SHOWN]}


def _on_cpu(rig: Rig, steps: int) -> dict[str, Any]:
    with Operations() as operations:
        done = _run(rig, steps)
    top = [{"name": name, "ms": None, "count": count / done} for name, count in operations.seen.most_common(SHOWN)]
    return {"steps": done, "kernels": operations.seen.total() / done, "copies": 0.0, "top": top}


class Operations(TorchDispatchMode):
    """Counts torch's operations, except views and those that move no data: each is one kernel or more."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count the operation, then run it."""
        name = func.overloadpacket.__name__
        if not func.is_view and name not in NO_KERNELS:
            self.seen[name] += 1
        return func(*args, **(kwargs or {}))
