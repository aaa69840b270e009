"""The log of a vLLM server: what it received, and, where it was told to log outputs, what it answered.

A plain request log has prompts only. With --enable-log-outputs the answers follow, by the same request id; of a
streamed answer the line that holds all of it counts.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from augury.tools.replay.records import Conversation, Message, token_ids

REQUEST = re.compile(r"\b(?:Received request|Generated response) \S+|\bRequest \S+ details: prompt")
_LITERAL = r"""('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
_PROMPT = re.compile(rf"(?:Received request|Request) (\S+?)(?: details)?: prompt: (?:{_LITERAL}|None)")
_PROMPT_IDS = re.compile(r"\bprompt_token_ids: \[([\d, ]*)\]")
_OUTPUT = re.compile(rf"Generated response (\S+)( \(streaming \w+\))?: output: {_LITERAL}")
_OUTPUT_IDS = re.compile(r"\boutput_token_ids: \[([\d, ]*)\]")
WAITING = 100_000  # prompts kept for an answer that may still come


def read_log(lines: Iterator[str], path: Path) -> Iterator[Conversation]:
    """A conversation for every answer, in the order they ended, then one for every prompt without an answer."""
    waiting: dict[str, tuple[Message, str]] = {}
    for number, line in enumerate(lines, 1):
        if found := _PROMPT.search(line):
            turn = _said("user", found[2], _PROMPT_IDS.search(line))
            if turn:
                waiting[found[1]] = turn, f"line {number}"
        elif (found := _OUTPUT.search(line)) and found[2] != " (streaming delta)":
            prompt = waiting.pop(_request(found[1], waiting), None)
            turn = _said("assistant", found[3], _OUTPUT_IDS.search(line))
            if prompt and turn:
                yield _conversation([prompt[0], turn], path, f"line {number}")
        if len(waiting) > WAITING:
            turn, where = waiting.pop(next(iter(waiting)))
            yield _conversation([turn], path, where)
    for turn, where in waiting.values():
        yield _conversation([turn], path, where)


def _request(answered: str, waiting: dict[str, tuple[Message, str]]) -> str:
    """The name a request was received under: completions get a number after it."""
    return answered if answered in waiting else f"{answered}-0"


def _said(role: str, literal: str | None, ids: re.Match[str] | None) -> Message | None:
    """Recorded token ids where there are any, otherwise the text; nothing if the line holds neither."""
    if ids and ids[1].strip():
        return Message(role, token_ids([int(token) for token in ids[1].split(",")], "token_ids"))
    if literal is None:
        return None
    try:
        return Message(role, str(ast.literal_eval(literal)))
    except (ValueError, SyntaxError):
        return None


def _conversation(turns: list[Message], path: Path, where: str) -> Conversation:
    texts = {isinstance(turn.said, str) for turn in turns}
    # A prompt in token ids and an answer in text cannot be put together: the tokenizer may be another.
    return Conversation(turns if len(texts) == 1 else turns[:1], False, path.stem, "", where)
