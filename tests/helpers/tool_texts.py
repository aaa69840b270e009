"""Answers with calls and reasoning as models of each family write them, made from what they say."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

from augury.serve.parsers.events import ARGUMENTS, CALL, CONTENT, REASONING, Event

Call = tuple[str, dict[str, Any]]
WORDS = (
    "Let me look.", "Zürich", "x < y && y > z", "a\nb", "\ttab", 'say "hi"', "it's", "{", "}", "[1, 2]", "日本", "\\n",
    "<", "</", "<tool", "<|", "[TOOL", "<think", "🙂", "true", "null", "3", "-1.5", ",", ":", "=", "()", "def", " ",
)  # fmt: skip
NAMES = ("get_weather", "search", "a", "write_file", "Read2")


class Answer(NamedTuple):
    """What an answer says."""

    reasoning: str
    content: str
    calls: list[Call]


def prose(dice: Random, most: int = 6) -> str:
    """A text without marks, and no white space at its ends."""
    return " ".join(dice.choice(WORDS) for _ in range(dice.randint(1, most))).strip() or "."


def _value(dice: Random, depth: int = 0) -> Any:
    kind = dice.randrange(8 if depth < 2 else 6)
    if kind < 3:
        return "".join(dice.choice(WORDS) for _ in range(dice.randint(0, 4)))
    if kind < 6:
        return dice.choice([0, 7, -3, 2.5, True, False, None, 10**12])
    if kind == 6:
        return [_value(dice, depth + 1) for _ in range(dice.randint(0, 3))]
    return {dice.choice("abcd"): _value(dice, depth + 1) for _ in range(dice.randint(0, 3))}


def answer(dice: Random) -> Answer:
    """Any answer: with or without text, reasoning and calls."""
    names = dice.sample(NAMES, dice.choice([0, 1, 1, 2, 3]))  # each once: its schema has one type for an argument
    keys = ("city", "days", "o", "text")
    calls = [(name, {dice.choice(keys): _value(dice) for _ in range(dice.randint(0, 3))}) for name in names]
    reasoning = prose(dice) if dice.random() < 0.7 else ""
    return Answer(reasoning, prose(dice) if not calls or dice.random() < 0.5 else "", calls)


def events(said: Answer) -> list[Event]:
    """The events of an answer, arguments as values."""
    found = [Event(REASONING, said.reasoning)] if said.reasoning else []
    found += [Event(CONTENT, said.content)] if said.content else []
    for name, arguments in said.calls:
        found += [Event(CALL, name), Event(ARGUMENTS, json.dumps(arguments, ensure_ascii=False))]
    return found


def tools_of(said: Answer) -> list[dict[str, Any]]:
    """Tools whose schemas give each argument the type it has in the answer."""
    names = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}
    found = []
    for name, arguments in said.calls:
        types = {key: "null" if value is None else names[type(value)] for key, value in arguments.items()}
        properties = {key: {"type": kind} for key, kind in types.items()}
        function = {"name": name, "parameters": {"type": "object", "properties": properties}}
        found.append({"type": "function", "function": function})
    return found


def _object(name: str, arguments: dict[str, Any], dice: Random, key: str = "arguments") -> str:
    members = [("name", name), (key, arguments)]
    if dice.random() < 0.2:
        members.reverse()
    return json.dumps(dict(members), ensure_ascii=dice.random() < 0.5, indent=dice.choice([None, None, 2]))


def _hermes(said: Answer, dice: Random) -> str:
    gap = dice.choice(["", "\n"])
    return gap.join(f"<tool_call>{gap}{_object(*call, dice)}{gap}</tool_call>" for call in said.calls)


def _llama3(said: Answer, dice: Random) -> str:
    tag = dice.choice(["", "<|python_tag|>"]) if said.calls else ""
    return tag + "; ".join(_object(*call, dice, "parameters") for call in said.calls)


def _pythonic(said: Answer, dice: Random) -> str:
    if not said.calls:
        return ""
    return "[" + ", ".join(f"{n}({', '.join(f'{k}={v!r}' for k, v in a.items())})" for n, a in said.calls) + "]"


def _mistral(said: Answer, dice: Random) -> str:
    if dice.random() < 0.5 and said.calls:
        return "[TOOL_CALLS][" + ", ".join(_object(*call, dice) for call in said.calls) + "]"
    between = dice.choice(["", "[ARGS]"])
    return "".join(f"[TOOL_CALLS]{n}{between}{json.dumps(a)}" for n, a in said.calls)


def _deepseek(call: Callable[[str, str], str]) -> Callable[[Answer, Random], str]:
    def write(said: Answer, dice: Random) -> str:
        calls = [
            f"<｜tool▁call▁begin｜>{call(n, json.dumps(a, ensure_ascii=False))}<｜tool▁call▁end｜>"
            for n, a in said.calls
        ]
        return f"<｜tool▁calls▁begin｜>{''.join(calls)}<｜tool▁calls▁end｜>" if calls else ""

    return write


def _kimi(said: Answer, dice: Random) -> str:
    calls = [
        f"<|tool_call_begin|>functions.{n}:{i}<|tool_call_argument_begin|>{json.dumps(a)}<|tool_call_end|>"
        for i, (n, a) in enumerate(said.calls)
    ]
    return f"<|tool_calls_section_begin|>{''.join(calls)}<|tool_calls_section_end|>" if calls else ""


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _coder(said: Answer, dice: Random) -> str:
    def one(name: str, arguments: dict[str, Any]) -> str:
        members = "".join(f"<parameter={k}>\n{_as_text(v)}\n</parameter>\n" for k, v in arguments.items())
        return f"<tool_call>\n<function={name}>\n{members}</function>\n</tool_call>"

    return "\n".join(one(*call) for call in said.calls)


def _glm(said: Answer, dice: Random) -> str:
    def one(name: str, arguments: dict[str, Any]) -> str:
        members = "".join(
            f"<arg_key>{k}</arg_key>\n<arg_value>{_as_text(v)}</arg_value>\n" for k, v in arguments.items()
        )
        return f"<tool_call>{name}\n{members}</tool_call>"

    return "\n".join(one(*call) for call in said.calls)


def _granite(said: Answer, dice: Random) -> str:
    begin = dice.choice(["<|tool_call|>", "<tool_call>"])
    return f"{begin} [{', '.join(_object(*call, dice) for call in said.calls)}]" if said.calls else ""


def _granite_20b(said: Answer, dice: Random) -> str:
    return "".join(f"<function_call> {_object(*call, dice)}" for call in said.calls)


def _harmony(said: Answer, dice: Random) -> str:
    parts = [f"<|channel|>analysis<|message|>{said.reasoning}<|end|>"] if said.reasoning else []
    if said.content:
        channel = "commentary" if said.calls else "final"
        parts.append(f"<|channel|>{channel}<|message|>{said.content}<|end|>")
    for name, arguments in said.calls:
        header = f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>"
        parts.append(f"{header}{json.dumps(arguments)}<|call|>")
    return "<|start|>assistant".join(parts)


WRITERS: dict[str, Callable[[Answer, Random], str]] = {
    "hermes": _hermes,
    "llama3_json": _llama3,
    "pythonic": _pythonic,
    "mistral": _mistral,
    "deepseek_v3": _deepseek(lambda name, text: f"function<｜tool▁sep｜>{name}\n```json\n{text}\n```"),
    "deepseek_v31": _deepseek(lambda name, text: f"{name}<｜tool▁sep｜>{text}"),
    "kimi_k2": _kimi,
    "qwen3_coder": _coder,
    "glm45": _glm,
    "granite": _granite,
    "granite-20b-fc": _granite_20b,
    "openai": _harmony,
}
THINKERS = {
    "deepseek_r1": ("<think>", "</think>"),
    "qwen3": ("<think>", "</think>"),
    "glm45": ("<think>", "</think>"),
    "kimi_k2": ("<think>", "</think>"),
    "seed_oss": ("<seed:think>", "</seed:think>"),
    "mistral": ("[THINK]", "[/THINK]"),
    "granite": ("Here is my thought process:", "Here is my response:"),
}
NO_PROSE = ("pythonic",)  # calls are the whole answer
NO_REASONING = ("pythonic", "llama3_json", "granite", "granite-20b-fc", "hermes", "mistral")


def text_of(name: str, said: Answer, dice: Random) -> str:
    """An answer as models write it for one tool parser; its reasoning is left out, except where it has a channel."""
    calls = WRITERS[name](said, dice)
    if name == "openai" or not said.content:
        return calls
    return said.content + (dice.choice(["", "\n", "\n\n"]) + calls if calls else "")


def cuts(text: str, dice: Random) -> list[str]:
    """The text in up to nine pieces, cut anywhere."""
    places = sorted(dice.randint(0, len(text)) for _ in range(dice.randint(1, 8)))
    return [text[begin:end] for begin, end in zip([0, *places], [*places, len(text)], strict=True)]


def damaged(text: str, dice: Random) -> str:
    """The text with parts lost, doubled, moved or cut off, as a model may write it."""
    for _ in range(dice.randint(1, 3)):
        at, size = dice.randrange(len(text) + 1), dice.randint(1, 12)
        how = dice.randrange(4)
        if how == 0:
            text = text[:at] + text[at + size :]
        elif how == 1:
            text = text[:at] + text[at : at + size] + text[at:]
        elif how == 2:
            text = text[:at]
        else:
            text = text[:at] + dice.choice(WORDS) + text[at:]
    return text
