"""Llama 3: {"name": ..., "parameters": {...}} in the answer, perhaps after <|python_tag|>, several parted by `;`."""

from __future__ import annotations

import re

from augury.serve.parsers.json_calls import call_object
from augury.serve.parsers.reader import Held, Marks, Reader, Steps, nowhere

TAG = "<|python_tag|>"
BEGINS = Marks(TAG, "{")
PARTED = re.compile(r"[\s;]*")


def llama3_json(reader: Reader) -> Steps[None]:
    """Objects with a name and parameters; others, and the text around them, are content."""
    while mark := (yield from reader.upto(BEGINS, reader.content, take=False)):
        held = Held()
        if mark == TAG:
            yield from reader.literal(TAG, held.add)
            yield from reader.space(held.add, held)
        if (yield from call_object(reader, held)):
            yield from reader.run(PARTED, nowhere)
        else:
            reader.content(held.text)
