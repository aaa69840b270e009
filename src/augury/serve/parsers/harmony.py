"""gpt-oss: messages with a channel each. Analysis is reasoning; a message `to=functions.NAME` is a call."""

from __future__ import annotations

import re
from typing import NamedTuple

from augury.serve.parsers.reader import Held, Marks, Reader, Sink, Steps, nowhere

START, CHANNEL, MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
BEGINS = Marks(START, CHANNEL, MESSAGE)
HEADER_ENDS = Marks(MESSAGE, "<|end|>", "<|call|>", "<|return|>")
BODY_ENDS = Marks("<|end|>", "<|call|>", "<|return|>", START, CHANNEL)
RECIPIENT = re.compile(r"to=([^\s<]{1,512})")
NAMED = re.compile(r"<\|channel\|>(\w{1,64})")
ANALYSIS, FUNCTIONS = "analysis", "functions."


class Header(NamedTuple):
    """The header of a message."""

    channel: str
    recipient: str

    @classmethod
    def read(cls, text: str) -> Header:
        """Channel and recipient of a header, in either order."""
        channel, recipient = NAMED.search(text), RECIPIENT.search(text)
        return cls(channel.group(1) if channel else "", recipient.group(1) if recipient else "")


def harmony(reader: Reader) -> Steps[None]:
    """Messages one after another; text outside them is content."""
    yield from reader.space()
    held = Held()
    if (yield from reader.literal("to=", held.add)):  # the prompt ends with <|start|>assistant
        yield from _message(reader, held)
    while (yield from reader.upto(BEGINS, reader.content, take=False)):
        yield from _message(reader, Held())


def _message(reader: Reader, held: Held) -> Steps[None]:
    mark = yield from reader.upto(HEADER_ENDS, held.add, held)
    if mark != MESSAGE:
        if held.full or not reader.ended:  # a header that the end cut off is nothing to show
            reader.content(held.text + mark)
        return
    sink = _sink_of(reader, Header.read(held.text))
    end = yield from reader.upto(BODY_ENDS, sink, take=False)
    if end not in (START, CHANNEL):
        yield from reader.literal(end)


def _sink_of(reader: Reader, header: Header) -> Sink:
    if header.recipient.startswith(FUNCTIONS) and (name := header.recipient.removeprefix(FUNCTIONS)):
        reader.call(name)
        return reader.arguments
    if header.channel == ANALYSIS:
        return reader.reasoning
    # What goes to tools of the model's own, such as its browser, is not for the client.
    return nowhere if header.recipient else reader.content
