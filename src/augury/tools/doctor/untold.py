"""Values that are filled in only where a command is run: `$NAME`, `{{ .Values.k }}`, `<a placeholder>`."""

from __future__ import annotations

import re

from augury.tools.doctor.arguments import ReadArguments, WrittenKey
from augury.tools.doctor.problems import Problem

VARIABLE = re.compile(r"\$(?:[\w{(]|$)|`|\{\{")  # in a word that a shell, compose or Kubernetes fills in
TEMPLATE = re.compile(r"\$\{\w|\$\(\w|\{\{")  # in a file, which some program may fill in before it is read
PLACEHOLDER = re.compile(r"<[\w. /-]+>")


def set_aside(result: ReadArguments) -> None:
    """Remove keys whose values are unknown here from the configuration and report them, because they are not wrong."""
    told = dict(result.keys)
    for name, setting in result.keys.items():
        text = _untold(setting)
        if not text or (name == "model" and "method" in told):
            continue  # given the method, the drafter's name is not needed
        result.partial = True
        result.problems.append(Problem("json-has-variable", setting.start, setting.end, {"text": f"{name} ({text})"}))
        del told[name]
    result.keys = told


def _untold(setting: WrittenKey) -> str:
    """The variable or placeholder written instead of a value; empty if the value itself is written."""
    node = setting.member.node if setting.member is not None else None
    word = node.origin if node is not None else setting.flag.word if setting.flag is not None else None
    if word is None:
        return ""
    if node is not None and isinstance(setting.value, dict):  # YAML reads a template as a mapping
        text = node.origin.text[node.start : node.end]
        return text if text.startswith("{{") else ""
    if not isinstance(setting.value, str):
        return ""
    if PLACEHOLDER.fullmatch(setting.value.strip()):
        return setting.value
    if word.expands and VARIABLE.search(setting.value):
        return setting.value
    return setting.value if not word.shell and TEMPLATE.search(setting.value) else ""
