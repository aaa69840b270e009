"""The application for `serve deploy`, from its arguments; nothing is started."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("ray", reason="needs Ray: pip install 'augury[ray]'")

from augury.config.errors import ConfigError
from augury.scale.ray_app import build, read_arguments

PAGE = Path(__file__).parents[2] / "docs" / "scale.md"


def test_arguments_are_the_options_of_serve() -> None:
    given = {"model": "toy", "replicas": 3, "max_model_len": 64, "speculative_config": {"method": "suffix"}}
    model, engine, server = read_arguments(given)
    assert (model, server.replicas) == ("toy", 3)
    assert engine == {"max_model_len": 64, "speculative_config": {"method": "suffix"}}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"port": 8000}, "http_options"),
        ({"replicas": 4, "max_replicas": 2}, "fewer than"),
        ({"max_modellen": 5}, "did you mean 'max_model_len'"),
        ({"replicas": 0}, "args: replicas"),
    ],
)
def test_what_is_wrong_is_named_before_anything_starts(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        build(given)


def test_the_file_of_the_page_builds() -> None:
    block = re.search(r"```yaml\n(.*?)```", PAGE.read_text(), re.S)
    assert block is not None
    (application,) = yaml.safe_load(block[1])["applications"]
    assert application["import_path"] == f"{build.__module__}:{build.__name__}"
    build(application["args"])
