"""Commands inside a Dockerfile: CMD and ENTRYPOINT in both forms, RUN, and the variables around them."""

from __future__ import annotations

import re

from augury.tools.doctor.found.command import IMAGE, FoundCommand, Variable, Variables, assigned, in_script, in_words
from augury.tools.doctor.found.mapped import Mapped, joined, json_string
from augury.tools.doctor.found.places import Node, NotJson, read_json
from augury.tools.doctor.found.shell_words import ShellReader, Word, plain_words

INSTRUCTION = re.compile(r"[ \t]*(FROM|RUN|CMD|ENTRYPOINT|ENV)[ \t]+", re.I)


def in_dockerfile(source: Mapped) -> list[FoundCommand]:
    """Every command that building the image or running it would run."""
    found: list[FoundCommand] = []
    entry: list[Word] | None = None
    command: list[Word] = []
    variables: Variables = {}
    image = ""

    def close() -> None:
        words = [*(entry or []), *command]
        here = in_words(words, dict(variables), image=image)
        if not here and words and entry is None and IMAGE.search(image):
            here = [FoundCommand("vllm serve", words, words[0].start, words[0].end, dict(variables), image)]
        found.extend(here)

    for instruction, body in _instructions(source):
        if instruction == "FROM":
            close()
            entry, command, variables = None, [], {}
            image = body.text.split()[0] if body.text.split() else ""
        elif instruction == "ENV":
            variables |= _docker_env(body)
        elif instruction == "RUN":
            found += [one for one in in_script(body) if one.words]
        elif instruction == "ENTRYPOINT":
            entry, own = _form(body)
            variables |= own
        else:
            command, own = _form(body)
            variables |= own
    close()
    return found


def _instructions(source: Mapped) -> list[tuple[str, Mapped]]:
    """Instructions with their bodies; comment lines inside a continued one are left out, as docker does."""
    found, i, text = [], 0, source.text
    while i < len(text):
        head = INSTRUCTION.match(text, i)
        parts: list[Mapped] = []
        at, goes_on = head.end() if head else i, True
        while goes_on and at < len(text):
            end = text.find("\n", at)
            end = len(text) if end < 0 else end + 1
            line = text[at:end]
            if not (parts and line.lstrip().startswith("#")):
                parts.append(source.part(at, end))
                goes_on = line.rstrip().endswith("\\") and not line.lstrip().startswith("#")
            at = end
        if head:
            found.append((head[1].upper(), joined(parts, source.layers)))
        i = max(at, i + 1)
    return found


def _form(body: Mapped) -> tuple[list[Word], Variables]:
    """Exec form is a JSON list; everything else goes through a shell, which may set variables first."""
    if body.text.lstrip().startswith("["):
        inner = _unbroken(body)
        try:
            node = read_json(Word(inner, " " * len(inner.text), inner.at[0], inner.at[-1], False))
        except NotJson:
            node = None
        if node is not None and node.items and all(isinstance(item.value, str) for item in node.items):
            return [_string_word(item) for item in node.items], {}
    simple = ShellReader(body).commands()
    variables = {
        name: Variable(word.text, word.start, word.end) for one in simple for name, word in one.environment.items()
    }
    return [word for one in simple for word in one.words], variables


def _unbroken(body: Mapped) -> Mapped:
    """The body without the line continuations that docker joins and the blanks around it."""
    parts, at = [], len(body.text) - len(body.text.lstrip())
    for end in re.finditer(r"\\[ \t]*\r?\n", body.text):
        parts.append(body.part(at, end.start()))
        at = end.end()
    parts.append(body.part(at, len(body.text.rstrip())))
    return joined(parts, body.layers)


def _string_word(item: Node) -> Word:
    body = json_string(item.origin.body, item.start, item.end)
    start, end = item.place
    return Word(body, " " * len(body.text), start + 1, end - 1, False)


def _docker_env(body: Mapped) -> Variables:
    words = plain_words(body)
    if words and "=" not in words[0].text:  # the old form, one variable per line
        return {words[0].text: Variable(" ".join(word.text for word in words[1:]), words[0].start, words[-1].end)}
    return assigned(words)
