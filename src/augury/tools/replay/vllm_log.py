"""The log of a vLLM server: the prompts it received and, if it logs outputs, its answers.

A plain request log has only prompts. With --enable-log-outputs the answers follow under the same request id; for a
streamed answer, the line that holds all of it is used.
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
WAITING = 100_000  # prompts kept for answers that may still follow


def read_log(lines: Iterator[str], path: Path) -> Iterator[Conversation]:
    """A conversation for every answer, in order of completion, then one for every prompt without an answer."""
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
    """The id under which a request was received; completions have "-0" appended there."""
    return answered if answered in waiting else f"{answered}-0"


def _said(role: str, literal: str | None, ids: re.Match[str] | None) -> Message | None:
    """A message with the recorded token ids, otherwise with the text; None if the line has neither."""
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
    # A prompt in token ids and an answer in text cannot be combined: the tokenizers may differ.
    return Conversation(turns if len(texts) == 1 else turns[:1], False, path.stem, "", where)
