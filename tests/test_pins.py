"""The pinned versions: exact, and such as pyproject.toml allows, so that an audit of them speaks for an install."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PIN = re.compile(r"([A-Za-z0-9][\w.-]*)==([\w.!+]+)")
EPOCH_OF_ITS_OWN = {"grafana-foundation-sdk"}  # pinned in pyproject.toml itself, whose epoch is a date


def pins() -> dict[str, str]:
    lines = [line.partition("#")[0].strip() for line in (ROOT / "constraints.txt").read_text().splitlines()]
    found = [PIN.fullmatch(line) for line in lines if line]
    assert all(found), [line for line in lines if line and not PIN.fullmatch(line)]
    return {canonicalize_name(pin[1]): pin[2] for pin in found if pin}


def required() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    texts = [*project["dependencies"], *(one for part in extras.values() for one in part)]
    named = [Requirement(text) for text in texts]
    return [one for one in named if one.name != "augury"]


@pytest.mark.parametrize("requirement", required(), ids=str)
def test_a_pin_is_what_the_project_allows(requirement: Requirement) -> None:
    pinned = pins().get(canonicalize_name(requirement.name))
    if requirement.name in EPOCH_OF_ITS_OWN or pinned is None:
        assert requirement.specifier, f"{requirement} has neither a pin nor a bound"
    else:
        assert requirement.specifier.contains(pinned), f"{requirement} is pinned to {pinned}"


def test_every_extra_that_the_pages_name_exists() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    pages = "".join(page.read_text() for page in [ROOT / "README.md", *(ROOT / "docs").glob("[a-z]*.md")])
    named = {one.strip() for inside in re.findall(r"augury\[([\w, ]+)\]", pages) for one in inside.split(",")}
    assert {"vllm", "traces", "ray"} <= named <= set(extras)
