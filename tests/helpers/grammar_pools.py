"""What tests of grammars' processes share: to ask for a grammar, to read its masks, and to look at the processes."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from conftest import byte_tokenizer
from structured import EOS

from augury import SamplingParams
from augury.engine.grammar import Grammar, Grammars
from augury.engine.grammar_jobs import Ticket

SMALL = {"regex": "[ab]{3}"}
A, B = 64, 65


def start(grammars: Grammars, form: dict[str, Any], **more: Any) -> Grammar:
    grammar = grammars.start(SamplingParams(structured_outputs=form, **more))
    assert grammar is not None
    return grammar


def may(mask: np.ndarray) -> list[int]:
    return np.nonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))[0].tolist()


def accepts(grammars: Grammars, form: dict[str, Any], text: str) -> bool:
    """Whether a whole text has the form."""
    grammar = start(grammars, form)
    for token in _toy_tokens().encode(text, add_special_tokens=False):
        if token not in may(grammar.masks[0]):
            return False
        if grammar.consume(token):
            return True
        grammar.look_ahead([], [])
    return EOS in may(grammar.masks[0])


@cache
def _toy_tokens() -> Any:
    return byte_tokenizer()


def server_pid(grammars: Grammars) -> int:
    return grammars.pool._servers[0].process.pid


def children(process: int) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def bring(grammars: Grammars, until: Callable[[], bool]) -> None:
    limit = time.monotonic() + 120
    while not until():
        assert time.monotonic() < limit
        grammars.pool.poll(0.01)


def ask(grammars: Grammars, form: dict[str, Any], client: str = "") -> Ticket:
    return grammars.ask(SamplingParams(structured_outputs=form), client)
