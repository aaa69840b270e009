"""How compose and Kubernetes interpolate the dollar signs of a text before any program sees it.

Compose fills in `$NAME` and `${NAME:-default}` from its own environment, Kubernetes `$(NAME)` from the container's
variables; for both, `$$` is a literal dollar meant for the shell in the container.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from augury.tools.doctor.found.allowance import spend
from augury.tools.doctor.found.command import Variables
from augury.tools.doctor.found.mapped import Mapped, joined

Value = Callable[[Mapped, re.Match[str]], Mapped | None]  # what to write for a match, or None to leave it
NESTED = 3  # defaults inside defaults, such as ${A:-${B:-c}}
COMPOSE = re.compile(r"\$(?:(\$)|\{([A-Za-z_]\w*)(?::?-([^}$]{0,999}))?[^}$]{0,999}\}|([A-Za-z_]\w*))")
KUBERNETES = re.compile(r"\$(?:(\$)|\(([A-Za-z_][\w.-]*)\))")


def by_compose(body: Mapped) -> Mapped:
    """The text after compose: `$$` becomes one dollar, and variables become their defaults if they have one."""
    if "$" not in body.text:
        return body
    for _ in range(NESTED):
        body = _replaced(body, COMPOSE, _default)
    return _replaced(body, COMPOSE, _dollar).within(lambda text: text.replace("$", "$$"))


def by_kubernetes(body: Mapped, variables: Variables) -> Mapped:
    """The text after Kubernetes: `$$` becomes one dollar, and `$(NAME)` the container's variable if it is known."""
    if "$" not in body.text:
        return body

    def value(body: Mapped, found: re.Match[str]) -> Mapped | None:
        if found[1]:
            return _dollar(body, found)
        known = variables.get(found[2])
        return known.word.body if known is not None and known.word is not None else None

    return _replaced(body, KUBERNETES, value)


def from_outside(text: str) -> set[str]:
    """The names in a raw compose text that have no default, so only compose's own environment gives their values."""
    return {found[2] or found[4] for found in COMPOSE.finditer(text) if not found[1] and found[3] is None}


def _default(body: Mapped, found: re.Match[str]) -> Mapped | None:
    return body.part(*found.span(3)) if found[3] is not None else None


def _dollar(body: Mapped, found: re.Match[str]) -> Mapped | None:
    """One dollar sign mapped onto the two letters that spell it."""
    start, end = body.place(*found.span())
    return Mapped("$", (start, end), body.layers, (end,)) if found[1] else None


def _replaced(body: Mapped, pattern: re.Pattern[str], value: Value) -> Mapped:
    parts, last = [], 0
    for found in pattern.finditer(body.text):
        new = value(body, found)
        if new is None:
            continue
        spend(len(new.text))
        parts += [body.part(last, found.start()), new]
        last = found.end()
    return joined([*parts, body.part(last, len(body.text))], body.layers) if parts else body
