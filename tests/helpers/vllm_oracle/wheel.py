"""A vLLM wheel, downloaded and unzipped; never installed, and its compiled parts are left in the archive."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

FOLDER = "AUGURY_VLLM_WHEEL"  # an unzipped wheel, or the wheel itself
INSTALLED = "-"  # stands for a wheel where the vLLM of a Python is asked
SEARCHED = "AUGURY_VLLM_WHEELS"  # where downloads are kept


class NoWheel(Exception):
    """Why there is none, in one line."""


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
        if subprocess.run(command, check=False).returncode:
            raise NoWheel(f"pip finds no vllm=={release}; its last line says why")
    return unzipped(next(home.glob(f"vllm-{release}-*.whl")))


def unzipped(wheel: Path) -> Path:
    """The folder of a wheel's files."""
    folder = wheel if wheel.is_dir() else wheel.with_suffix("")
    if not wheel.is_dir() and not (folder / "vllm").is_dir():
        partly = folder.with_name(f"{folder.name}.partly")  # an interrupted run leaves no half of a release behind
        try:
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(partly, [name for name in archive.namelist() if not name.endswith(".so")])
        except (OSError, zipfile.BadZipFile) as error:
            raise NoWheel(f"{wheel} is no wheel that can be read: {error}") from None
        partly.rename(folder)
    if not list(folder.glob("vllm-*.dist-info")):
        raise NoWheel(f"{wheel} holds no release of vLLM")
    return folder


def release_of(folder: Path) -> str:
    """The release that a folder holds."""
    return next(folder.glob("vllm-*.dist-info")).name.removesuffix(".dist-info").split("-")[1]
