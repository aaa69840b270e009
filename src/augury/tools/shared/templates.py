"""Texts and tables in files of their own, with `<< expressions >>` of Jinja in them.

The delimiters are not Jinja's usual ones because Prometheus and Grafana use those.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from jinja2 import Environment


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FunctionLoader, StrictUndefined, select_autoescape

    return Environment(
        loader=FunctionLoader(_source),
        autoescape=select_autoescape(["html"], default_for_string=False),
        variable_start_string="<<",
        variable_end_string=">>",
        block_start_string="<%",
        block_end_string="%>",
        comment_start_string="<#",
        comment_end_string="#>",
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
    )


def _source(name: str) -> str:
    return resources.files("augury.tools").joinpath(name).read_text(encoding="utf-8")


def render(name: str, **values: Any) -> str:
    """Render a file of a tool, such as `monitor/readme.md`."""
    return _environment().get_template(name).render(values)


def fill(name: str, **values: Any) -> Any:
    """Load a YAML file of a tool and render each string in it; list entries whose `when` is not true are left out."""
    return _filled(yaml.safe_load(_source(name)), values)


def _filled(value: Any, values: dict[str, Any]) -> Any:
    if isinstance(value, str):
        return _environment().from_string(value).render(values) if "<" in value else value
    if isinstance(value, list):
        return [_filled(one, values) for one in value if _wanted(one, values)]
    if isinstance(value, dict):
        return {key: _filled(one, values) for key, one in value.items() if key != "when"}
    return value


def _wanted(value: Any, values: dict[str, Any]) -> bool:
    when = value.get("when") if isinstance(value, dict) else None
    return when is None or bool(_environment().compile_expression(when)(values))
