"""Which parser reads a model's answers: by the names that vLLM's flags take, or by the marks in its chat template."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from augury.config.errors import ConfigError
from augury.model.errors import ModelError
from augury.serve.parsers.glm import glm45
from augury.serve.parsers.granite import granite
from augury.serve.parsers.granite_reasoning import granite_reasoning
from augury.serve.parsers.harmony import harmony
from augury.serve.parsers.hermes import granite_20b, hermes
from augury.serve.parsers.llama3_json import llama3_json
from augury.serve.parsers.mistral import mistral
from augury.serve.parsers.pythonic import pythonic
from augury.serve.parsers.qwen3_coder import qwen3_coder
from augury.serve.parsers.reader import Chain, Format, Parser
from augury.serve.parsers.sections import deepseek_v3, deepseek_v31, kimi_k2
from augury.serve.parsers.think import FAMILIES, Family, think
from augury.serve.parsers.typed import Tools

HARMONY, HARMONY_REASONING = "openai", "openai_gptoss"
GRANITE = "granite"


def _always(form: Format) -> Callable[[Tools], Format]:
    return lambda _: form


TOOL_PARSERS: dict[str, Callable[[Tools], Format]] = {
    "deepseek_v3": _always(deepseek_v3),
    "deepseek_v31": _always(deepseek_v31),
    "glm45": glm45,
    "glm47": glm45,
    "granite": _always(granite),
    "granite-20b-fc": _always(granite_20b),
    "granite4": _always(hermes),
    "hermes": _always(hermes),
    "kimi_k2": _always(kimi_k2),
    "llama3_json": _always(llama3_json),
    "llama4_json": _always(llama3_json),
    "llama4_pythonic": _always(pythonic),
    "mistral": _always(mistral),
    HARMONY: _always(harmony),
    "pythonic": _always(pythonic),
    "qwen3_coder": qwen3_coder,
    "qwen3_json": _always(hermes),
    "qwen3_xml": qwen3_coder,
}
REASONING_PARSERS = (*FAMILIES, GRANITE, HARMONY_REASONING)
# The first parser whose marks are all in the chat template is the one.
SIGNS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (HARMONY, ("<|channel|>", "<|start|>")),
    ("deepseek_v3", ("<｜tool▁calls▁begin｜>", "```json")),
    ("deepseek_v31", ("<｜tool▁calls▁begin｜>",)),
    ("kimi_k2", ("<|tool_calls_section_begin|>",)),
    ("glm45", ("<arg_key>",)),
    ("qwen3_coder", ("<function=",)),
    ("mistral", ("[TOOL_CALLS]",)),
    ("granite", ("<|tool_call|>",)),
    ("granite-20b-fc", ("<function_call>",)),
    ("hermes", ("<tool_call>",)),
    ("llama4_pythonic", ("<|python_start|>",)),
    ("pythonic", ("func_name1(params_name1",)),
    ("llama3_json", ("<|python_tag|>",)),
    ("llama3_json", ('"parameters": dictionary of argument name',)),
)


def recognised(template: str) -> str | None:
    """The parser for a model with this chat template."""
    return next((name for name, marks in SIGNS if all(mark in template for mark in marks)), None)


def named_parsers(tool: str | None, reasoning: str | None) -> Parsers:
    """The parsers of these names; an unknown name is refused with a list of the known ones."""
    for flag, name, known in (
        ("--tool-call-parser", tool, TOOL_PARSERS),
        ("--reasoning-parser", reasoning, REASONING_PARSERS),
    ):
        if name is not None and name not in known:
            raise ConfigError(f"{flag} {name}: unknown parser; known are {', '.join(sorted(known))}.")
    return Parsers(tool, reasoning)


def settled(named: Parsers, enabled: bool, template: str) -> Parsers:
    """The parsers that a server uses: one for calls only if models may call freely, by its name or by the template."""
    tool = (named.tool or recognised(template)) if enabled else None
    if enabled and tool is None:
        why = "the chat template has none of the marks of calls that are known here"
        raise ModelError(f"--enable-auto-tool-choice: {why}; name a parser with --tool-call-parser.")
    return named._replace(tool=tool)


class Parsers(NamedTuple):
    """The names of a server's parsers; None if it does not parse calls, or reasoning."""

    tool: str | None = None
    reasoning: str | None = None

    @property
    def harmony(self) -> bool:
        """Whether messages have channels, which hold calls and reasoning alike."""
        return self.tool == HARMONY or self.reasoning == HARMONY_REASONING

    @property
    def short_ids(self) -> bool:
        """Whether the template takes ids of nine letters and digits only."""
        return self.tool == "mistral"

    @property
    def family(self) -> Family | None:
        """How reasoning is marked."""
        return FAMILIES.get(self.reasoning or "")

    def of(self, tools: Tools | None, begins: bool | None = True) -> Chain:
        """A parser for one answer: for calls if there are `tools`, and for reasoning.

        `begins`: reasoning begins the answer (True), comes after its mark (False), or is not there (None).
        """
        if self.harmony:
            return Chain([Parser(harmony)])
        forms: list[Format] = []
        if self.reasoning == GRANITE:
            forms.append(granite_reasoning)
        elif self.family is not None and begins is not None:
            forms.append(think(self.family, begins and self.family.begins))
        if tools is not None and self.tool is not None:
            forms.append(TOOL_PARSERS[self.tool](tools))
        return Chain([Parser(form) for form in forms])


def thinks(family: Family | None, options: dict[str, Any], prompt_end: str) -> bool:
    """Whether an answer has reasoning in it: by the request's own switch, and by how its prompt ends."""
    if family is None:
        return False
    opened, closed = prompt_end.rfind(family.begin), prompt_end.rfind(family.end)
    if closed > opened and not prompt_end[closed + len(family.end) :].strip():
        return False  # the template has closed it already
    if opened > closed:
        return True
    told = [bool(options[name]) for name in family.switch if options.get(name) is not None]
    return any(told) if told else family.default
