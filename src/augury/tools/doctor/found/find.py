"""Finds `vllm serve` and its like in whatever holds them: scripts, Dockerfiles, YAML, unit files, JSON, Python."""

from __future__ import annotations

import re
from dataclasses import replace
from difflib import get_close_matches
from pathlib import PurePath
from typing import Literal

import yaml

from augury.config.errors import ConfigError
from augury.config.read import KEYS
from augury.methods.registry import ALIASES, METHODS
from augury.tools.doctor.found import merged
from augury.tools.doctor.found import yaml_files as found_yaml
from augury.tools.doctor.found.allowance import MOST_COMMANDS, one_text, spend
from augury.tools.doctor.found.command import IMAGE, FoundCommand, Variables, assigned, in_script, in_words
from augury.tools.doctor.found.dockerfiles import in_dockerfile
from augury.tools.doctor.found.interpolated import by_compose, from_outside
from augury.tools.doctor.found.mapped import Mapped
from augury.tools.doctor.found.places import Node, NotJson, from_yaml, read_json
from augury.tools.doctor.found.python_files import in_python
from augury.tools.doctor.found.release import image_release, installed_release
from augury.tools.doctor.found.shell_words import UNSPELT, ShellReader, Word, plain_words

Kind = Literal["shell", "dockerfile", "yaml", "unit", "json", "markdown", "python"]
HOLDS = re.compile(
    r"vllm\s+(?:serve|bench|run-batch)\b|vllm\.entrypoints|dynamo\.vllm\b|augury\s+serve\b|speculative[-_]config|vllm-openai|"
    r"\"num_speculative_tokens\"|\bspeculative_model\s*="
)
MAKEFILE = re.compile(r"(?i)(gnu)?makefile|.*\.mk$")
DOCKERFILE = re.compile(r"(?i)(docker|container)file|.*\.dockerfile$")
_ENDINGS: dict[Kind, str] = {
    "yaml": ".yaml .yml",
    "json": ".json",
    "markdown": ".md",
    "python": ".py",
    "unit": ".service .container",
    "shell": ".sh .bash .zsh",
}
SUFFIXES = {ending: kind for kind, endings in _ENDINGS.items() for ending in endings.split()}
SPECULATION = ("speculative_config", "speculative-config")
ARGUMENT = re.compile(r"(-sc|--speculative[-_]config|--spec[-_](method|model|tokens))\b")
ADDED = "VLLM_ADDITIONAL_ARGS"
UNIT_LINE = re.compile(
    r"^[ \t]*(Environment|Exec(?:Start\w*)?|Image)[ \t]*=[ \t]*[-@:+!]*((?:[^\n]*\\\r?\n)*[^\n]*)", re.M
)
FENCE = re.compile(r"^[ \t]*(```|~~~)([^\n]*)\n(.*?)^[ \t]*\1", re.M | re.S)


def kind_by_name(name: str) -> Kind | None:
    """The kind of file by its name alone; None if the name does not tell."""
    path = PurePath(name)
    if DOCKERFILE.match(path.name):
        return "dockerfile"
    if MAKEFILE.fullmatch(path.name):
        return "shell"
    return SUFFIXES.get(path.suffix.lower())


def kind_of(name: str, text: str) -> Kind:
    """The kind of file by its name, otherwise by its contents."""
    named = kind_by_name(name)
    if named is not None:
        return named
    if text.lstrip("\ufeff \t\r\n").startswith("{"):
        return "json"
    if re.match(r"#!.*\bpython|(?:from|import)[ \t]", text):
        return "python"
    if re.search(r"^\[(Service|Container)\]", text, re.M):
        return "unit"
    if re.search(r"^FROM\s+\S+", text, re.M):
        return "dockerfile"
    if re.search(r"^[ \t-]*\w[\w-]*:(?:[ \t]|$)", text, re.M) and not re.match(r"#!|\s*(?:\w+=\S*\s+)*\S*vllm ", text):
        return "yaml"
    return "shell"


def find_commands(text: str, name: str = "") -> list[FoundCommand]:
    """Every command in a text; a ConfigError if it is malformed for its kind, or too costly to read."""
    with one_text():
        found = _found(text, name)
    if len(found) > MOST_COMMANDS:
        where = name or "the text"
        raise ConfigError(f"{where} holds {len(found):,} commands; {MOST_COMMANDS:,} are examined at once, split it.")
    installed = installed_release(text)
    for one in found:
        one.release = image_release(one.image) or installed
    return found


def _found(text: str, name: str) -> list[FoundCommand]:
    made = MAKEFILE.fullmatch(PurePath(name).name)
    source, kind = Mapped.whole(_of_make(text) if made else text), kind_of(name, text)
    if kind in ("shell", "markdown") and "vllm" not in text and "augury" not in text:
        return []  # a long script about something else is not worth parsing
    if kind == "dockerfile":
        found = in_dockerfile(source)
    elif kind == "unit":
        found = _unit(source)
    elif kind == "json":
        found = _json(source)
    elif kind == "yaml":
        found = _yaml(source, name) if kind_by_name(name) or _is_yaml(text) else in_script(source)
    elif kind == "markdown":
        found = [one for block in FENCE.finditer(text) for one in _fenced(source.part(*block.span(3)), block[2])]
    elif kind == "python":
        found = in_python(source)
    else:
        found = in_script(source)
    return found


def _of_make(text: str) -> str:
    """Rewrite Make's `$(NAME)` as a shell's `${NAME}`; every letter keeps its position."""
    return re.sub(r"\$\((\w+)\)", r"${\1}", text)


def _fenced(block: Mapped, language: str) -> list[FoundCommand]:
    return in_python(block) if language.strip().lower().startswith(("py", "python")) else in_script(block)


def _unit(source: Mapped) -> list[FoundCommand]:
    variables: Variables = {}
    found: list[FoundCommand] = []
    image = ""  # of a Podman unit, where it is written before Exec
    for line in UNIT_LINE.finditer(source.text):
        words = plain_words(source.part(*line.span(2)))
        if line[1] == "Environment":
            variables |= assigned(words)
        elif line[1] == "Image":
            image = line[2].strip()
        else:
            spend(len(variables))
            here = in_words(words, dict(variables), image=image)
            # Without a program of its own, Exec has the arguments of the image's program.
            if not here and words and line[1] == "Exec" and IMAGE.search(image):
                here = [FoundCommand("vllm serve", words, words[0].start, words[0].end, dict(variables), image)]
            found += here
    return found


def _json(source: Mapped) -> list[FoundCommand]:
    text = source.text
    start = 1 if text.startswith("\ufeff") else 0
    body = source.part(start, len(text.rstrip()))
    word = Word(body, " " * len(body.text), start, len(text), False)
    try:
        node = read_json(word)
    except NotJson:
        return [FoundCommand("", [word], 0, 0, bare=True)]  # arguments.py says what is wrong with it
    return _settings(node) or _manifest(source)


def _manifest(source: Mapped) -> list[FoundCommand]:
    """A manifest in JSON, which is also YAML: a Kubernetes object or a cloud provider's task definition."""
    try:
        return _yaml(source, "")
    except ConfigError:
        return []


def _settings(node: Node) -> list[FoundCommand]:
    """An object that is a speculative_config or holds one."""
    if not isinstance(node.value, dict):
        return []
    names = {member.name.replace("-", "_") for member in node.members}
    if any(member.name.replace("-", "_") == "speculative_config" and _foreign(member.node) for member in node.members):
        return []
    if names & {"speculative_config", "spec_method", "spec_tokens"}:
        return [FoundCommand("", [], *node.place, settings=node)]
    telling = names & {*KEYS, "num_spec_tokens", "k"} - {"model", "quantization", "revision", "max_model_len", "seed"}
    if telling:
        return [FoundCommand("", [], *node.place, settings=node, bare=True)]
    return []


def _foreign(node: Node) -> bool:
    """Whether a speculative_config is another program's: TensorRT-LLM has one, and some templates use that name."""
    if isinstance(node.value, str):
        word = node.value.strip()
        return word.isidentifier() and word not in METHODS and word not in ALIASES
    names = {member.name.replace("-", "_") for member in node.members}
    if not isinstance(node.value, dict) or not names:
        return False
    return "decoding_type" in names or not any(get_close_matches(name, KEYS, n=1, cutoff=0.7) for name in names)


def _yaml(source: Mapped, name: str) -> list[FoundCommand]:
    source = source.part(1, len(source.text)) if source.text.startswith("\ufeff") else source
    try:
        roots = found_yaml.documents(source.text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}" if mark else "somewhere"
        helm = " (a Helm template? render it first: helm template)" if "{{" in source.text else ""
        raise ConfigError(f"{name or 'the text'} is not YAML ({where}: {_first(error)}){helm}.") from None
    whole = Word(source, "", 0, len(source.text), False)
    return [one for root in roots for one in _document(root, source, whole)]


def _is_yaml(text: str) -> bool:
    try:
        return bool(found_yaml.documents(text))
    except (yaml.YAMLError, RecursionError, ValueError):
        return False


def _first(error: Exception) -> str:
    return " ".join(str(getattr(error, "problem", None) or "nested too deeply").split())


def _document(root: yaml.Node, source: Mapped, whole: Word) -> list[FoundCommand]:
    found: list[FoundCommand] = []
    used: set[int] = set()
    services, templates = merged.services(root), merged.templates(root)
    for mapping in found_yaml.mappings(root):
        parts = merged.extended(merged.named(mapping), services)
        if any(name in parts for name in SPECULATION):
            found += _settings(from_yaml(mapping, whole))
        elif any(name in parts for name in found_yaml.COMMANDS) and id(mapping) not in templates:
            here, nodes = _container(parts, source, bool(services))
            found += [one for one in here if not any(_same(one, other) for other in found)]
            used |= nodes if here else set()
        found += [one for node in parts.values() for one in _arguments(node, source, used, bool(services))]
        found += _added(parts, source)
    for scalar in found_yaml.scalars(root):
        if id(scalar) not in used and HOLDS.search(scalar.value) and "\n" in scalar.value:
            body = found_yaml.decoded(scalar, source)
            found += _text(by_compose(body) if services else body)
    charted = found_yaml.charted_image(root, IMAGE)
    for one in found:
        one.image = one.image or charted
    return found


def _same(one: FoundCommand, other: FoundCommand) -> bool:
    """Whether two services share one command, as services that merge the same mapping do."""
    return one.image == other.image and one.words == other.words


def _arguments(node: yaml.Node, source: Mapped, used: set[int], compose: bool) -> list[FoundCommand]:
    """A list of arguments under another name, such as a chart's extraArgs."""
    items = node.value if isinstance(node, yaml.SequenceNode) else []
    texts = [item.value for item in items if isinstance(item, yaml.ScalarNode)]
    if any(id(item) in used for item in items) or not any(ARGUMENT.match(text) for text in texts):
        return []
    words = found_yaml.list_words(node, source, compose)
    return [FoundCommand("vllm serve", words, words[0].start, words[0].end)]


def _added(parts: dict[str, yaml.Node], source: Mapped) -> list[FoundCommand]:
    """Arguments in a container's variable, which KServe's script for an LLMInferenceService appends to vLLM's."""
    added = found_yaml.environment({"env": parts["env"]}, source).get(ADDED) if "env" in parts else None
    if added is None or added.word is None or not ARGUMENT.search(added.value):
        return []
    words = [word for one in ShellReader(added.word.inside()).commands() for word in one.words]
    return [FoundCommand("vllm serve", words, added.start, added.end)]


def _text(inner: Mapped) -> list[FoundCommand]:
    """Commands in a script or a settings file embedded in a text; a ConfigMap holds either."""
    if re.search(r"^[ \t]*speculative[-_]config:", inner.text, re.M):
        try:
            return _yaml(inner, "")
        except ConfigError:
            return []
    return in_script(inner)


def _container(parts: dict[str, yaml.Node], source: Mapped, compose: bool) -> tuple[list[FoundCommand], set[int]]:
    """The commands of a compose service or a Kubernetes container, and the ids of the nodes its words came from."""
    words: list[Word] = []
    nodes: set[int] = set()
    outside: set[str] = set()
    for name in found_yaml.COMMANDS:
        node = parts.get(name)
        if isinstance(node, yaml.ScalarNode):
            nodes.add(id(node))
            body = found_yaml.decoded(node, source)
            outside |= from_outside(body.text)
            words += [
                word for one in ShellReader(by_compose(body) if compose else body).commands() for word in one.words
            ]
        elif node is not None:
            nodes |= {id(item) for item in node.value}
            outside |= {one for item in node.value for one in from_outside(str(getattr(item, "value", "")))}
            words += found_yaml.list_words(node, source, compose)
    image = parts["image"].value if isinstance(parts.get("image"), yaml.ScalarNode) else ""
    variables = found_yaml.environment(parts, source, compose)
    words = words if compose else found_yaml.filled(words, variables)
    # What a shell in the container sees; compose fills in the other names before the container starts.
    visible = {name: one.word for name, one in variables.items() if one.word and not (compose and name in outside)}
    known = {name: replace(word, quotes=UNSPELT * len(word.text)) for name, word in visible.items()}
    here = in_words(words, variables, known, image)
    if not here and words and IMAGE.search(image) and "entrypoint" not in parts:
        here = [FoundCommand("vllm serve", words, words[0].start, words[0].end, variables, image)]
    return here, nodes
