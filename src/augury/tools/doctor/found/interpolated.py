"""What compose and Kubernetes make of the dollars in a text before any program sees it.

Compose fills in `$NAME` and `${NAME:-default}` from where it is run, Kubernetes `$(NAME)` from the container's own
variables; for both `$$` is a dollar that is meant for the shell in the container.
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
    """With `$$` as one dollar, and defaults where nothing else is known."""
    if "$" not in body.text:
        return body
    for _ in range(NESTED):
        body = _replaced(body, COMPOSE, _default)
    return _replaced(body, COMPOSE, _dollar).within(lambda text: text.replace("$", "$$"))


def by_kubernetes(body: Mapped, variables: Variables) -> Mapped:
    """With `$$` as one dollar, and the container's variables where they are named."""
    if "$" not in body.text:
        return body

    def value(body: Mapped, found: re.Match[str]) -> Mapped | None:
        if found[1]:
            return _dollar(body, found)
        known = variables.get(found[2])
        return known.word.body if known is not None and known.word is not None else None

    return _replaced(body, KUBERNETES, value)


def from_outside(text: str) -> set[str]:
    """The names in a compose text, as it is written, whose values only the place where compose is run tells."""
    return {found[2] or found[4] for found in COMPOSE.finditer(text) if not found[1] and found[3] is None}


def _default(body: Mapped, found: re.Match[str]) -> Mapped | None:
    return body.part(*found.span(3)) if found[3] is not None else None


def _dollar(body: Mapped, found: re.Match[str]) -> Mapped | None:
    """Two letters that stand for one."""
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
