"""Calls that a grammar forces: JSON and nothing else, whatever the model's own way to write calls is."""

from __future__ import annotations

from augury.serve.parsers.json_calls import call_list
from augury.serve.parsers.reader import Format, Held, Reader, Steps, nowhere


def required(reader: Reader) -> Steps[None]:
    """[{"name": ..., "parameters": {...}}, ...]."""
    held = Held()
    yield from reader.space()
    if not (yield from call_list(reader, held)):
        reader.content(held.text)
        yield from reader.rest(reader.content)
    yield from reader.rest(nowhere)


def named(name: str) -> Format:
    """The arguments of one function, whose name is known."""

    def read(reader: Reader) -> Steps[None]:
        reader.call(name)
        yield from reader.rest(reader.arguments)

    return read
