"""The conditions of a measurement: the CPU and the library versions."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def cpu_name() -> str:
    """The processor as the system names it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def versions_of(packages: Mapping[str, str]) -> dict[str, str]:
    """Python's release and those of the packages that are installed, under the names given to them."""
    found = {"python": platform.python_version()}
    for name, package in packages.items():
        try:
            found[name] = version(package)
        except PackageNotFoundError:
            continue
    return found


def how_threads_wait() -> str:
    """How OpenMP is told that idle threads wait, in words: "passive", or "passive after 20000 spins"."""
    policy, spins = os.environ.get("OMP_WAIT_POLICY", "active"), os.environ.get("GOMP_SPINCOUNT")
    return policy if spins is None else f"{policy} after {spins} spins"
