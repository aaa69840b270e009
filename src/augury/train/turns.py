"""Finds served prompts that ask what is held out, whatever surrounds it: other turns, another system message."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

MARK = "AUGURY USER WORDS"
ENOUGH = 8  # characters before a user's words that tell a turn's beginning from text


class Turns:
    """Held-out questions, to be found in the token ids of served prompts."""

    def __init__(self, tokenizer: Any, asked: Sequence[list[dict[str, str]]]) -> None:
        self._questions = {messages[-1]["content"].strip() for messages in asked}
        self._text, self._bare, self._turn = tokenizer.decoder(False), tokenizer.decoder(True), _turn(tokenizer)

    def hold(self, prompt: list[int]) -> bool:
        """Whether a held-out question is a whole user turn of a prompt, or the whole prompt."""
        text = self._text(prompt)
        said = [text, self._bare(prompt), *(self._turn.findall(text) if self._turn else ())]
        return any(words.strip() in self._questions for words in said)


def _turn(tokenizer: Any) -> re.Pattern[str] | None:
    """What a user's turn looks like in the target's template; None where it has none, or changes the words."""
    inner = tokenizer.inner
    if not inner.chat_template:
        return None
    rendered = inner.apply_chat_template([{"role": "user", "content": MARK}], tokenize=False)
    head, mark, end = rendered.partition(MARK)
    if not (mark and head and end):
        return None
    return re.compile(f"{re.escape(head[-ENOUGH:])}(.*?){re.escape(end)}", re.DOTALL)
