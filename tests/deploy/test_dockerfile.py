"""The Dockerfile: linted by hadolint, and every file, extra and option it names is there."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from command_record import commands

from augury.tools.doctor.examine import examine

ROOT = Path(__file__).parents[2]
HADOLINT = Path(sys.executable).with_name("hadolint")  # of the tests' own installation, which no PATH need name
TEXT = (ROOT / "Dockerfile").read_text()


def test_hadolint_has_nothing_to_say() -> None:
    ran = subprocess.run([HADOLINT, ROOT / "Dockerfile"], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout


def test_what_it_copies_is_there_and_not_ignored() -> None:
    named = {name for line in re.findall(r"^COPY (.+) \S+$", TEXT, re.M) for name in line.split()}
    assert {"pyproject.toml", "src", "packages", "."} <= named
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert all((ROOT / name).exists() and name not in ignored for name in named)


def test_what_it_installs_is_declared() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = set(re.findall(r"'\.\[(\w+)\]'", TEXT))
    assert named == {"serve"} and named <= set(extras)
    assert re.search(r"^torch==", (ROOT / "constraints.txt").read_text(), re.M)
    torch = next(one for one in extras["engine"] if one.startswith("torch"))
    assert f"'{torch}'" in TEXT, "the bounds of the CUDA stage are those of the project"


def test_its_commands_are_ones_that_augury_takes() -> None:
    served = [json.loads(words) for words in re.findall(r"^CMD (\[.*\])$", TEXT, re.M)]
    known = commands()
    for words in served:
        if words[0] != "make":
            taken = {word for names in known[f"augury {words[0]}"]["parameters"] for word in names.split()}
            assert {word for word in words if word.startswith("--")} <= taken
    found = examine(TEXT, "Dockerfile")
    assert len(found.commands) == 2 and not found.findings


def test_stages() -> None:
    assert re.findall(r"^FROM \S+ AS (\w+)$", TEXT, re.M) == ["base", "doctor", "cpu", "cuda", "dev"]
    assert TEXT.count("USER 10001") == 3, "images that serve do not run as root"
