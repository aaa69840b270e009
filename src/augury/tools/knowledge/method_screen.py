"""One method as a terminal page: when to use it, how to write it, what it needs, how well it should do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from augury.methods.registry import METHODS
from augury.methods.spec import Method
from augury.tools.knowledge.base import Entry, knowledge, readable

PREFIX = "choose-"
DRAFTS_FROM = {
    "none": "text that was seen before; there are no weights to load",
    "draft": 'a checkpoint of its own, named by "model"',
    "target": "layers in the target's own files",
    "either": 'layers in the target\'s own files, or a checkpoint named by "model"',
    "import path": 'a class of yours, named by "model"',
}
READS = {"none": "the tokens alone", "last": "the target's last hidden state", "auxiliary": "states of inner layers"}
FIT = 100  # columns: longer lines are hard to read on a wide screen


def method_of(entry: Entry) -> Method | None:
    """The card of the method that an entry recommends, if it is about one."""
    return METHODS.get(entry.id.removeprefix(PREFIX).replace("-", "_")) if entry.kind == "methods" else None


def show_method(console: Console, entry: Entry) -> None:
    """Print the page."""
    card = method_of(entry)
    name, _, when = entry.headline.partition(": ")
    title = Text.assemble((name, "bold"), f": {when}")
    paragraphs = [card.help] if card else []
    paragraphs.append(_sentence(readable(entry.why)))
    rows = list(_rows(entry, card))
    if console.is_terminal:
        console.print(title)
        for paragraph in paragraphs:
            console.print(Padding(Text(paragraph), (1, 0, 0, 2)), width=min(FIT, console.width))
        console.print(Padding(_table(rows), (1, 0, 0, 2)), width=min(FIT, console.width))
        return
    console.print(title, soft_wrap=True)
    facts = [f"{a + ':' if a else '':<13}{b}" for a, b in rows]
    for line in ("", *paragraphs, "", *facts):
        console.print(Text(f"  {line}".rstrip()), soft_wrap=True)


def _table(rows: list[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for label, text in rows:
        table.add_row(label, Text(text))
    return table


def _rows(entry: Entry, card: Method | None) -> Iterator[tuple[str, str]]:
    yield ("start with" if entry.fix.startswith("{{") else "what to do"), readable(entry.fix)
    if card is not None:
        yield "drafts from", f"{DRAFTS_FROM[card.weights]}; reads {READS[card.features]}"
        yield "in vLLM", _in_vllm(card)
        yield "healthy", _health(card)
        for number, warned in enumerate(_warned(card.name)):
            yield ("" if number else "beware of"), f"{warned.headline} [{warned.id}]"
    yield "source", entry.source


def _in_vllm(card: Method) -> str:
    """The vLLM releases that have the method, and how it runs in the newest."""
    if card.own:
        return f"never: it is {card.vllm_since}'s own"
    if card.vllm_until is not None:
        return f"{card.vllm_since} to before {card.vllm_until}; since then only Augury runs it"
    said = f"{card.vllm_since} and later"
    if card.vllm_gap is not None:
        said += f", but for {card.vllm_gap[0]} to before {card.vllm_gap[1]}"
    said += ", on the old model runner" if card.vllm_old_runner else ""
    return said + ("" if card.vllm_async else ", without asynchronous scheduling")


def _health(card: Method) -> str:
    band = card.band
    if band is None or (band.rate is None and band.length is None):
        return "no band is known; compare with plain decoding"
    parts = []
    if band.rate is not None:
        parts.append(f"{band.rate[0]:.0%} to {band.rate[1]:.0%} of the drafted tokens accepted")
    if band.length is not None:
        parts.append(f"{band.length[0]:g} to {band.length[1]:g} tokens a step")
    where = ", ".join(filter(None, [f"K={band.tokens}" if band.tokens else "", band.where]))
    return ", ".join(parts) + (f" ({where})" if where else "")


def _warned(method: str) -> list[Entry]:
    """Entries still in force that the doctor may report for this method in particular, errors first."""
    rank = {"error": 0, "warning": 1, "note": 2}
    found = [entry for entry in knowledge().values() if entry.linted and method in _named(entry.condition)]
    return sorted((entry for entry in found if entry.versions.until is None), key=lambda entry: rank[entry.severity])


def _named(condition: Any) -> set[str]:
    """The methods that a condition requires by name, without those it excludes."""
    if not isinstance(condition, Mapping):
        return set()
    names = condition.get("method", ())
    found = {names} if isinstance(names, str) else set(names)
    for word in ("all", "any"):
        for inner in condition.get(word, ()):
            found |= _named(inner)
    return found


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
