"""Commands inside YAML: compose services, Kubernetes containers, embedded scripts, and vLLM's own --config file."""

from __future__ import annotations

import re
from collections import deque
from typing import Any

import yaml

from augury.tools.doctor.found.command import Variable, Variables
from augury.tools.doctor.found.interpolated import by_compose, by_kubernetes, from_outside
from augury.tools.doctor.found.mapped import Encoder, Mapped, in_json, unescaped
from augury.tools.doctor.found.merged import named, pairs
from augury.tools.doctor.found.shell_words import Word

Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
COMMANDS = ("entrypoint", "command", "args")
FILLED_IN = re.compile(r"\$\(\w+\)|\$\{?[A-Za-z_]\w*|\{\{.*?\}\}")  # by Kubernetes, compose or Helm


def documents(text: str) -> list[yaml.Node]:
    """Every document of a file, as nodes with positions."""
    return [node for node in yaml.compose_all(text, Loader=Loader) if node is not None]


def mappings(root: yaml.Node) -> list[yaml.MappingNode]:
    """Every mapping in a document, outermost first; an alias is visited once."""
    found, seen, waiting = [], set[int](), deque([root])
    while waiting:
        node = waiting.popleft()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            found.append(node)
            waiting += [part for pair in node.value for part in pair]
        elif isinstance(node, yaml.SequenceNode):
            waiting += node.value
    return found


def scalars(root: yaml.Node) -> list[yaml.ScalarNode]:
    """Every scalar value in a document, also those in lists."""
    found: list[yaml.ScalarNode] = []
    for mapping in mappings(root):
        for _, value in mapping.value:
            inner = value.value if isinstance(value, yaml.SequenceNode) else [value]
            found += [node for node in inner if isinstance(node, yaml.ScalarNode)]
    return found


def decoded(node: yaml.ScalarNode, source: Mapped) -> Mapped:
    """A scalar's text with the position of every character, whatever its style."""
    start, end = node.start_mark.index, node.end_mark.index
    if node.style == '"':
        found = unescaped(source.part(start + 1, end - 1))
        if found.text == node.value:
            return found.within(in_json)
    layer: dict[str | None, Encoder] = {"'": lambda text: text.replace("'", "''"), '"': in_json}
    body = _aligned(node.value, source, start, end, skipping="'\"\\|>+-" if node.style else "")
    return body.within(layer[node.style]) if node.style in layer else body


def _aligned(text: str, source: Mapped, start: int, end: int, skipping: str) -> Mapped:
    """Align a scalar with its source; folding and quoting only ever drop or merge blanks, quotes and backslashes."""
    at, i = [], start
    raw = source.text
    if skipping and raw[start : start + 1] in "|>":
        i = raw.find("\n", start, end) + 1 or start  # the header of a block
    for letter in text:
        if i < end and raw[i] != letter:
            if letter.isspace():
                at.append(source.at[i])
                while i < end and raw[i].isspace():
                    i += 1
                continue
            while i < end and raw[i] != letter and (raw[i].isspace() or raw[i] in skipping):
                i += 1
        at.append(source.at[min(i, end)])
        i = min(i + 1, end)
    return Mapped(text, (*at, source.at[min(i, end)]), source.layers)


def list_words(node: yaml.Node, source: Mapped, compose: bool = False) -> list[Word]:
    """The elements of a list as words that no shell parses."""
    words = []
    for item in node.value if isinstance(node, yaml.SequenceNode) else ():
        if isinstance(item, yaml.ScalarNode):
            body = decoded(item, source)
            inside = 1 if item.style in ("'", '"') else 0  # edits go between the quotes
            start, end = source.at[item.start_mark.index + inside], source.at[item.end_mark.index - inside]
            filled_in = bool(from_outside(body.text)) if compose else FILLED_IN.search(body.text) is not None
            body = by_compose(body) if compose else body
            words.append(Word(body, " " * len(body.text), start, end, False, filled_in))
    return words


def filled(words: list[Word], variables: Variables) -> list[Word]:
    """The words with Kubernetes' `$(NAME)` replaced by the container's own variables."""
    found: list[Word] = []
    for word in words:
        name = re.fullmatch(r"(--[\w.-]+=)?\$\((\w+)\)", word.text)
        known = variables.get(name[2]) if name and not word.shell else None
        if name and known is not None and known.word is not None:
            # Splitting the flag from its value lets the value keep its own quoting.
            found += [word.part(0, len(name[1]) - 1), known.word] if name[1] else [known.word]
        else:
            found.append(word if word.shell else _resolved(word, variables))
    return found


def _resolved(word: Word, variables: Variables) -> Word:
    """A list's element with the variables that Kubernetes fills in inside it."""
    body = by_kubernetes(word.body, variables)
    if body is word.body:
        return word
    return Word(body, " " * len(body.text), word.start, word.end, False, FILLED_IN.search(body.text) is not None)


def charted_image(root: yaml.Node, wanted: re.Pattern[str]) -> str:
    """The one image that a chart's values give as repository and tag; empty if there are several."""
    images = set()
    for mapping in mappings(root):
        parts = {name: node.value for name, node in named(mapping).items() if isinstance(node, yaml.ScalarNode)}
        if "tag" in parts and wanted.search(f"{parts.get('repository', '')}:"):
            images.add(f"{parts['repository']}:{parts['tag']}")
    return images.pop() if len(images) == 1 else ""


def environment(parts: dict[str, yaml.Node], source: Mapped, compose: bool = False) -> Variables:
    """The variables of a service or container, in any of the three forms in which they can be written."""
    found: Variables = {}

    def take(name: str, first: yaml.Node, last: yaml.Node, behind: int = 0) -> None:
        [word] = list_words(yaml.SequenceNode("", [last]), source, compose)
        word = word.part(behind) if compose else _resolved(word.part(behind), found)
        start = min(first.start_mark.index, last.start_mark.index)
        end = max(first.end_mark.index, last.end_mark.index)
        found[name] = Variable(word.text, source.at[start], source.at[end], word)

    for name in ("environment", "env"):
        node = parts.get(name)
        for key, value in pairs(node) if isinstance(node, yaml.MappingNode) else ():
            if isinstance(key, yaml.ScalarNode) and isinstance(value, yaml.ScalarNode):
                take(key.value, key, value)
        for item in node.value if isinstance(node, yaml.SequenceNode) else ():
            if isinstance(item, yaml.ScalarNode) and "=" in item.value:
                key = item.value.partition("=")[0]
                take(key, item, item, len(key) + 1)
            elif isinstance(item, yaml.MappingNode):
                pair = {key: value for key, value in named(item).items() if isinstance(value, yaml.ScalarNode)}
                if "name" in pair and "value" in pair:
                    take(pair["name"].value, pair["name"], pair["value"])
    return found
