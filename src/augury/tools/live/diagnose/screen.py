"""Shows a diagnosis in a terminal: the symptoms, the causes with their evidence, and what is not known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from augury.tools.live.check.screen import drafter, joined
from augury.tools.live.checks import Judged
from augury.tools.live.diagnose.diagnosis import Diagnosis, Suspect
from augury.tools.live.diagnose.evidence import Sources
from augury.tools.live.marks import safe
from augury.tools.shared.severity import STYLES
from augury.tools.shared.terminal import print_wrapped

EXPLAINED = (
    "rate-under-half",
    "first-position-low",
    "rate-below-band",
    "length-below-band",
    "acceptance-fell",
)  # by the causes listed under other symptoms
BY_CAUSE = "go through the causes"  # a fix that says no more than the list of causes under it
SHOWN = 3  # causes; the others are counted


@dataclass(frozen=True, slots=True)
class Found:
    """One model's diagnosis."""

    judged: Judged | None
    facts: dict[str, Any]
    diagnosis: Diagnosis
    remarks: list[str]


class Heading(NamedTuple):
    """The subject of a diagnosis: a server's address or a file, and the engine with its release."""

    where: str
    who: str


def show(console: Console, head: Heading, sources: Sources, found: list[Found], verbose: bool) -> None:
    """Print the whole screen."""
    for one in found:
        _headline(console, head, one)
        for remark in one.remarks:
            print_wrapped(console, Text(f"note: {safe(remark)}", "dim"))
        _show_seen(console, one.diagnosis)
        _show_configuration(console, sources)
        _show_causes(console, one.diagnosis, verbose)
        _show_unknown(console, one.diagnosis)


def _headline(console: Console, head: Heading, found: Found) -> None:
    parts = [Text(safe(head.where), "bold"), Text(safe(head.who))]
    if found.judged is not None:
        window = found.judged.window
        parts.append(Text(safe(window.after.model)))
        parts.append(Text(drafter(found.judged)))
        if window.drafting.rate is not None:
            parts.append(Text(f"rate {window.drafting.rate:.3f}, length {window.drafting.length:.2f}"))
    print_wrapped(console, joined([part for part in parts if part.plain]))


def _show_seen(console: Console, diagnosis: Diagnosis) -> None:
    if not diagnosis.wrong:
        print_wrapped(console, Text("nothing wrong found", "bold green"))
    for symptom in diagnosis.symptoms:
        severity = symptom.entry.severity
        head = Text.assemble((f"{severity}[{symptom.entry.id}]", STYLES[severity]), ": ", safe(symptom.message))
        print_wrapped(console, head)
        if severity != "note" and symptom.entry.id not in EXPLAINED and not symptom.fix.startswith(BY_CAUSE):
            _labelled(console, "fix", symptom.fix)


def _show_configuration(console: Console, sources: Sources) -> None:
    findings = [f for f in (sources.config.findings if sources.config else ()) if f.severity != "note"]
    for finding in findings:
        head = Text.assemble(
            "in the configuration: ", (f"{finding.severity}[{finding.id}]", STYLES[finding.severity]), ": "
        )
        print_wrapped(console, head.append(safe(finding.message)))


def _show_causes(console: Console, diagnosis: Diagnosis, verbose: bool) -> None:
    if diagnosis.suspects:
        console.print()
        print_wrapped(console, Text("likely causes, best supported first", "bold"))
    shown = diagnosis.suspects if verbose else diagnosis.suspects[:SHOWN]
    for number, suspect in enumerate(shown, 1):
        _show_suspect(console, number, suspect)
    if verbose:
        for suspect in diagnosis.ruled_out:
            _labelled(console, "unlikely", "; because ".join([suspect.cause, *suspect.contradicted[:1]]))
        return
    also, unlikely = len(diagnosis.suspects) - len(shown), len(diagnosis.ruled_out)
    if also or unlikely:
        print_wrapped(console, Text(f"{also} more possible and {unlikely} unlikely causes: -v shows them", "dim"))


def _show_suspect(console: Console, number: int, suspect: Suspect) -> None:
    print_wrapped(
        console, Text.assemble((f"{number}. {safe(suspect.cause)}", "bold"), (f"  {suspect.score:.1f}", "dim"))
    )
    for text in suspect.supported:
        _labelled(console, "for", text)
    for text in suspect.contradicted:
        _labelled(console, "against", text)
    _labelled(console, "confirm", suspect.confirm)


def _show_unknown(console: Console, diagnosis: Diagnosis) -> None:
    if diagnosis.unknown:
        console.print()
    for who, facts in diagnosis.unknown.items():
        print_wrapped(console, Text.assemble(("not known: ", "cyan"), ", ".join(facts), (f" (give {who})", "dim")))


def _labelled(console: Console, word: str, text: str) -> None:
    """Print a label and a text, wrapped with a hanging indent."""
    if not console.is_terminal:
        console.print(Text.assemble("   ", (f"{word}: ", "cyan"), safe(text)), soft_wrap=True)
        return
    table = Table.grid()
    table.add_column(no_wrap=True, width=12)
    table.add_column(overflow="fold")  # a command must not be truncated
    table.add_row(Text(f"   {word}:", "cyan"), Text(safe(text)))
    console.print(table)
