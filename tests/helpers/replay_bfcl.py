"""BFCL's multi-turn dialogues through a server, every call forced: `python tests/helpers/replay_bfcl.py FILE`.

The file has one dialogue a line, with the names of its functions and no schemas: each function gets one to three
arguments whose types are drawn from its name. Turns ask by turns for a named function, for one call of any
(`required`), and for any number of calls. A call is well formed if its function is known and its arguments follow the
schema; the last call of an answer that `max_tokens` has cut off is not counted, and such answers are. With `--both` the
first dialogues are asked again without speculation, and their calls must be the same.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
from served import NGRAM, Served, served

TYPES: tuple[dict[str, Any], ...] = (
    {"type": "string", "maxLength": 20},
    {"type": "integer", "minimum": 0, "maximum": 99},
    {"type": "boolean"},
    {"enum": ["low", "high", "none"]},
    {"type": "array", "items": {"type": "string", "maxLength": 8}, "maxItems": 2},
)
KINDS = ("named", "one", "any number")
REMEMBERED = 8  # messages of a dialogue that are sent


def tools_of(dialogue: dict[str, Any]) -> list[Any]:
    """A schema for every function that a dialogue names."""
    made = []
    for path in dict.fromkeys(dialogue["path"]):
        drawn = random.Random(path)
        properties = {f"{name}": drawn.choice(TYPES) for name in drawn.sample(("a", "b", "c"), drawn.randint(1, 3))}
        parameters = {
            "type": "object",
            "properties": properties,
            "required": sorted(properties),
            "additionalProperties": False,
        }
        function = {"name": path.replace(".", "_"), "description": f"The function {path}.", "parameters": parameters}
        made.append({"type": "function", "function": function})
    return made


def follows(value: Any, schema: dict[str, Any]) -> bool:
    """Whether an argument is what its schema says."""
    if "enum" in schema:
        return value in schema["enum"]
    kind = {"string": str, "integer": int, "boolean": bool, "array": list}[schema["type"]]
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
        return False
    if isinstance(value, str):
        return len(value) <= schema["maxLength"]
    if isinstance(value, list):
        return len(value) <= schema["maxItems"] and all(follows(item, schema["items"]) for item in value)
    return isinstance(value, bool) or schema["minimum"] <= value <= schema["maximum"]


def well_formed(name: str, arguments: str, tools: list[Any]) -> bool:
    """Whether a call is of a known function, with arguments that follow its schema."""
    schemas = {tool["function"]["name"]: tool["function"]["parameters"]["properties"] for tool in tools}
    try:
        given = json.loads(arguments)
    except ValueError:
        return False
    schema = schemas.get(name)
    if schema is None or not isinstance(given, dict) or given.keys() != schema.keys():
        return False
    return all(follows(given[key], one) for key, one in schema.items())


class Replay:
    """One run over dialogues."""

    def __init__(self, server: Served, speculative: dict[str, Any], minutes: float) -> None:
        # A server under load may say 503 and when to come back, as others' grammars are compiled first.
        self.client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=8, timeout=3600)
        self.speculative, self.limit = speculative, time.monotonic() + 60 * minutes
        self.turns, self.calls, self.good, self.cut = (Counter[str]() for _ in range(4))  # by kind of turn

    def dialogue(self, number: int, dialogue: dict[str, Any]) -> list[list[tuple[str, str]]]:
        """All turns of one; the calls of each."""
        tools, messages, said = tools_of(dialogue), [], []
        for turn, asked in enumerate(dialogue["question"]):
            if time.monotonic() > self.limit:
                break
            messages += asked
            kind = KINDS[(number + turn) % len(KINDS)]
            named = {"type": "function", "function": {"name": tools[turn % len(tools)]["function"]["name"]}}
            body: dict[str, Any] = {
                "model": "model",
                "messages": messages[-REMEMBERED:],
                "tools": tools,
                "tool_choice": named if kind == "named" else "required",
                "parallel_tool_calls": kind == "any number",
                "max_tokens": 300,
                "temperature": 0.8,
                "seed": 1000 * number + turn,
                "extra_body": {"speculative": self.speculative},
            }
            calls, end = self.ask(body, stream=number % 2 == 1)
            self.turns[kind] += 1
            self.cut[kind] += end == "length"
            whole = calls[:-1] if end == "length" else calls
            self.calls[kind] += len(whole) or end != "length"  # an answer without a call counts as a bad one
            self.good[kind] += sum(well_formed(*call, tools) for call in whole)
            said.append(calls)
            messages += self.answered(calls)
        return said

    def ask(self, body: dict[str, Any], stream: bool) -> tuple[list[tuple[str, str]], str]:
        """The calls of one answer, and how it ended."""
        if not stream:
            choice = self.client.chat.completions.create(**body).choices[0]
            calls = [(c.function.name, c.function.arguments) for c in choice.message.tool_calls or ()]
            return calls, str(choice.finish_reason)
        made: list[list[str]] = []
        end = ""
        for chunk in self.client.chat.completions.create(**body, stream=True):
            for piece in chunk.choices[0].delta.tool_calls or ():
                if piece.id is not None:
                    made.append([piece.function.name, ""])
                made[-1][1] += piece.function.arguments or ""
            end = chunk.choices[0].finish_reason or end
        return [(name, arguments) for name, arguments in made], end

    @staticmethod
    def answered(calls: list[tuple[str, str]]) -> list[Any]:
        """The turn as the next one remembers it: each call with a result."""
        asked = [
            {"id": f"call_{i}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for i, (name, arguments) in enumerate(calls)
        ]
        if not asked:
            return []
        results = [{"role": "tool", "tool_call_id": call["id"], "content": "done"} for call in asked]
        return [{"role": "assistant", "content": None, "tool_calls": asked}, *results]


def main() -> int:
    """Replay, print the figures; 1 if a call was not well formed, or not the same without speculation."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--every", type=int, default=1, help="take every so manieth dialogue")
    parser.add_argument("--both", type=int, default=0, help="dialogues to ask again without speculation")
    parser.add_argument("--minutes", type=float, default=600.0, help="begin no turn after so many")
    parser.add_argument("--model", default="default")
    given = parser.parse_args()
    dialogues = [json.loads(line) for line in given.file.read_text(encoding="utf-8").splitlines()][:: given.every]
    begun = time.monotonic()
    with served(given.model, "--served-model-name", "model", spec=NGRAM, fresh=True) as server:
        replay = Replay(server, {"num_speculative_tokens": 4}, given.minutes)
        with ThreadPoolExecutor(8) as pool:
            said = list(pool.map(replay.dialogue, range(len(dialogues)), dialogues))
        figures, plain = server.metrics(), Replay(server, {"enabled": False}, 600)
        took = time.monotonic() - begun
        whole = [n for n, calls in enumerate(said) if len(calls) == len(dialogues[n]["question"])][: given.both]
        same = [plain.dialogue(number, dialogues[number]) == said[number] for number in whole]
    drafted, accepted = (figures[f"vllm:spec_decode_num_{what}_tokens_total"] for what in ("draft", "accepted"))
    turns = replay.turns.total()
    print(
        f"{len(dialogues)} dialogues, {turns} turns in {took:.0f} s; {accepted:.0f} of {drafted:.0f} drafted accepted"
    )
    for kind in KINDS:
        print(
            f"  {kind}: {replay.turns[kind]} turns, {replay.good[kind]} of {replay.calls[kind]} calls well formed, "
            f"{replay.cut[kind]} answers cut off"
        )
    print(f"  without speculation: {sum(same)} of {len(same)} the same")
    return 0 if replay.good == replay.calls and all(same) else 1


if __name__ == "__main__":
    sys.exit(main())
