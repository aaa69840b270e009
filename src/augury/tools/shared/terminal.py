"""Output helpers: plain text for pipes, colour for terminals."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.padding import Padding
from rich.text import Text

from augury.config.errors import ConfigError
from augury.tools.shared.pulse import pulse

if TYPE_CHECKING:
    from augury.tools.shared.runs import Piece, Run

# A model may generate any character; control characters must not reach the terminal.
UNSAFE = dict.fromkeys([*range(9), *range(11, 32), *range(127, 160)])


def print_json(value: Any) -> None:
    """Print one JSON object on stdout and nothing else; values that JSON cannot represent become text."""
    text = json.dumps(sayable(value), indent=2, ensure_ascii=False, allow_nan=False)
    # JSON does not escape these, and terminals interpret them.
    text = re.sub("[\x7f-\x9f]", lambda found: f"\\u{ord(found[0]):04x}", text)
    print(text.encode("utf-8", "backslashreplace").decode())


@contextmanager
def errors_as(as_json: bool, code: int = 2) -> Iterator[None]:
    """With `as_json`, print a ConfigError as a JSON object and exit with this code."""
    try:
        yield
    except ConfigError as error:
        if not as_json:
            raise
        print_json({"error": str(error), "kind": getattr(error, "kind", "usage"), "exit_code": code})
        raise typer.Exit(code) from None


def sayable(value: Any) -> Any:
    """A value with NaN and infinities replaced by text."""
    if isinstance(value, dict):
        return {key: sayable(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [sayable(inner) for inner in value]
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value


def output_console() -> Console:
    """The console for stdout; rich handles NO_COLOR, pipes and simple terminals."""
    return Console(highlight=False, soft_wrap=False)


def drafted_style(console: Console) -> str:
    """The style of accepted drafts: a colour, or bold if colour is not wanted."""
    return "bold" if console.no_color else "green"


def colored(pieces: list[Piece], style: str) -> Text:
    """Pieces as rich text, with accepted drafts in `style`."""
    text = Text()
    for piece in pieces:
        text.append(piece.text.translate(UNSAFE), style if piece.drafted else "")
    return text


def summary(run: Run, speculating: bool) -> str:
    """An answer's figures in one line."""
    parts = [f"{len(run.token_ids)} tokens", f"{run.steps} passes", f"{run.speed:.1f} tok/s"]
    if speculating and not run.spec.num_drafts:
        parts.insert(2, "no drafts")
    elif speculating:
        spec = run.spec
        parts.insert(2, f"{spec.acceptance_rate:.0%} of {spec.num_draft_tokens} drafted tokens accepted")
        parts.insert(3, f"acceptance length {spec.acceptance_length:.2f}")
    return " · ".join(parts)


def print_wrapped(console: Console, text: Text, indent: int = 0) -> None:
    """Print a text, wrapped in a terminal and on one line in a pipe."""
    if console.is_terminal:
        console.print(Padding(text, (0, 0, 0, indent), expand=False))
    else:
        console.print(Text(" " * indent) + text, soft_wrap=True)


@contextmanager
def waiting(message: str, quiet: bool = False, lines: bool = False) -> Iterator[None]:
    """A spinner on stderr during slow work; in pipes nothing, or with `lines` the message every few seconds."""
    if quiet or not sys.stderr.isatty():
        with pulse(lambda: message, quiet or not lines):
            yield
        return
    with Console(stderr=True).status(message):
        yield


@contextmanager
def saying(quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """A line on stderr that changes only when told to, with no background thread that would disturb timing."""
    if quiet or not sys.stderr.isatty():
        yield lambda _: None
        return
    with Live(console=Console(stderr=True), auto_refresh=False, transient=True) as live:
        yield lambda words: live.update(Text(words, "dim"), refresh=True)


def size_text(size: int) -> str:
    """A size in bytes in a readable unit."""
    value, unit = float(size), "B"
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000 or unit == "GB":
            break
        value /= 1000
    return f"{value:.0f} {unit}" if unit in ("B", "kB") else f"{value:.1f} {unit}"
