"""A vLLM wheel, downloaded and unzipped; never installed, and its compiled parts are left in the archive."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

FOLDER = "AUGURY_VLLM_WHEEL"  # an unzipped wheel, or the wheel itself
SEARCHED = "AUGURY_VLLM_WHEELS"  # where downloads are kept


def at_hand() -> Path | None:
    """The wheel that the environment names, unzipped; None when it names none."""
    named = os.environ.get(FOLDER)
    return unzipped(Path(named)) if named else None


def download(release: str) -> Path:
    """A release from PyPI, a few hundred megabytes, unzipped; one that is there already is not fetched again."""
    home = Path(os.environ.get(SEARCHED, "~/.cache/augury/vllm")).expanduser()
    home.mkdir(parents=True, exist_ok=True)
    if not list(home.glob(f"vllm-{release}-*.whl")):
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "-d", str(home), f"vllm=={release}"]
        subprocess.run(command, check=True)
    return unzipped(next(home.glob(f"vllm-{release}-*.whl")))


def unzipped(wheel: Path) -> Path:
    """The folder of a wheel's files."""
    if wheel.is_dir():
        return wheel
    folder = wheel.with_suffix("")
    if not (folder / "vllm").is_dir():
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder, [name for name in archive.namelist() if not name.endswith(".so")])
    return folder


def release_of(folder: Path) -> str:
    """The release that a folder holds."""
    return next(folder.glob("vllm-*.dist-info")).name.removesuffix(".dist-info").split("-")[1]
