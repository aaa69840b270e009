"""A command line that was found, and how to recognise one in a list of words."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import PurePath
from typing import NamedTuple

from augury.tools.doctor.found.allowance import spend
from augury.tools.doctor.found.mapped import Mapped
from augury.tools.doctor.found.places import Node
from augury.tools.doctor.found.shell_words import ASSIGNED, ShellReader, Simple, Word

IMAGE = re.compile(r"(?:^|[/=])vllm(?:-(?:openai|ascend|cpu|rocm)[\w.-]*|/[\w.-]+)?(?:[:@]|$)")
# Modules that are run with vLLM's own arguments; Dynamo's worker hands them to the engine.
MODULE = re.compile(r"(?:vllm\.entrypoints\.(?:openai\.)?(?:api_server|run_batch)|dynamo\.vllm)$")
CLI = "vllm.entrypoints.cli.main"  # what the command `vllm` runs
SHELLS = ("sh", "bash", "dash", "zsh", "ash")


class Variable(NamedTuple):
    """A variable of the environment and where it is set."""

    value: str
    start: int
    end: int
    word: Word | None = None  # the value mapped to the source, if known letter by letter


Variables = dict[str, Variable]


@dataclass(slots=True)
class FoundCommand:
    """A command line and what surrounds it, or a file of settings."""

    program: str  # "vllm serve", "vllm bench throughput", "augury serve", or "" for settings alone
    words: list[Word]
    start: int
    end: int
    environment: Variables = field(default_factory=dict)
    image: str = ""
    release: str | None = None  # of vLLM, if the file names it
    settings: Node | None = None  # the arguments, when they are written as an object
    bare: bool = False  # the object is a speculative_config itself
    computed: bool = False  # some words are computed by a program, not written out: there is nothing to edit
    sampling: list[Node] = field(default_factory=list)  # SamplingParams(...) that a program hands to this engine

    @property
    def tool(self) -> str:
        """Whose command it is."""
        return "augury" if self.program.startswith("augury") else "vllm"


def in_script(source: Mapped) -> list[FoundCommand]:
    """Every command of a shell script."""
    return [one for simple in ShellReader(source).commands() for one in _in_simple(simple)]


def _in_simple(simple: Simple) -> list[FoundCommand]:
    if not any(_telling(word.text) for word in simple.words):
        return []
    spend(len(simple.environment))
    variables = {
        name: Variable(word.text, word.start - len(name) - 1, word.end) for name, word in simple.environment.items()
    }
    return in_words(simple.words, variables, simple.environment)


def in_words(
    words: list[Word], variables: Variables, known: dict[str, Word] | None = None, image: str = ""
) -> list[FoundCommand]:
    """The commands in a list of words: the words themselves, or what they hand to a shell or a container."""
    variables = {**variables, **_docker_variables(words)}
    for i, word in enumerate(words):
        if PurePath(word.text).name in SHELLS and (at := _script(words, i + 1)):
            # The word after the script is its name, `$0`; the ones after that are "$@".
            reader = ShellReader(words[at].inside(), known, handed_on=words[at + 2 :])
            return [one for simple in reader.commands() for one in _nested(simple, variables, image)]
        size = _program(words, i)
        if size:
            said = " ".join([PurePath(words[i].text).name, *(w.text for w in words[i + 1 : i + size])])
            program = "vllm serve" if words[i].text == "-m" else said
            end = words[i + size - 1].end
            return [FoundCommand(program, words[i + size :], word.start, end, variables, image or _image(words[:i]))]
    place = next((i for i, word in enumerate(words) if IMAGE.search(word.text) and not word.text.startswith("-")), None)
    if place is not None and any(word.text == "run" for word in words[:place]):
        return [
            FoundCommand(
                "vllm serve", words[place + 1 :], words[place].start, words[place].end, variables, words[place].text
            )
        ]
    return []


def _telling(text: str) -> bool:
    """Whether a word may be part of a command, so that all the words are worth reading."""
    return "vllm" in text or "augury" in text or text.rpartition("/")[2] in SHELLS


def _nested(simple: Simple, variables: Variables, image: str) -> list[FoundCommand]:
    found = _in_simple(simple)
    for one in found:
        one.environment = {**variables, **one.environment}
        one.image = one.image or image
    return found


def _script(words: list[Word], first: int) -> int:
    """The index of the script that a `-c` at or after index `first` hands to a shell; 0 if there is none."""
    for i in range(first, len(words) - 1):
        if re.fullmatch(r"-[a-z]*c", words[i].text):
            return i + 1
        if not words[i].text.startswith("-"):
            return 0
    return 0


def _program(words: list[Word], i: int) -> int:
    """How many words name the program that starts here; 0 when none does."""
    texts = [word.text for word in words[i : i + 3]] + ["", ""]
    name = PurePath(texts[0]).name
    if texts[0] == "-m" and texts[1] == CLI and texts[2] in ("serve", "run-batch"):
        return 3
    if name == "vllm" and texts[1] in ("serve", "bench", "run-batch"):
        return 3 if texts[1] == "bench" and texts[2] and not texts[2].startswith("-") else 2
    if name == "augury" and texts[1] == "serve":
        return 2
    return 2 if texts[0] == "-m" and MODULE.match(texts[1]) else 0


def _image(words: list[Word]) -> str:
    return next((word.text for word in words if IMAGE.search(word.text) and not word.text.startswith("-")), "")


def _docker_variables(words: list[Word]) -> Variables:
    pairs = [b for a, b in pairwise(words) if a.text in ("-e", "--env")]
    pairs += [word.part(len("--env=")) for word in words if word.text.startswith("--env=")]
    return assigned(pairs + [word for word in words if ASSIGNED.match(word.text)])  # the latter follow `env`


def assigned(words: list[Word]) -> Variables:
    """Words of the form NAME=value as variables."""
    found = {}
    for word in words:
        name, sign, value = word.text.partition("=")
        if sign:
            found[name] = Variable(value, word.start, word.end)
    return found
