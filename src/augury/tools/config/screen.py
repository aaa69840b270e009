"""A resolved configuration in the terminal."""

from __future__ import annotations

import json

from rich.console import Console
from rich.text import Text

from augury.config.profiles import ConfigProfile
from augury.config.speculative import SpeculativeConfig
from augury.methods.notes import Note
from augury.tools.config.check import FINE, REFUSED, WARNED, CheckedConfig, ConfigQuestion, derived

STYLES = {"inferred": "cyan", "translated": "yellow", "unused": "yellow", "warning": "yellow", "vllm": "magenta"}


def show(console: Console, question: ConfigQuestion, answer: CheckedConfig, code: int) -> None:
    """Print a verdict, the configuration as it was resolved, and every decision."""
    against = f" in vLLM {question.as_of}" if question.as_of else ""
    if answer.config is None:
        console.print(Text.assemble(("refused", "bold red"), f"{against}  {answer.error}"), soft_wrap=True)
        return
    word, style = {
        FINE: ("fine", "bold green"),
        WARNED: ("works, with remarks", "bold yellow"),
        REFUSED: ("refused", "bold red"),
    }[code]
    if answer.not_here and not question.as_of:
        word = "valid, but it does not run here"
    console.print(Text.assemble((word, style), f"{against}  {answer.config.card.help}"), soft_wrap=True)
    show_resolved(console, answer.config, question.as_of)
    show_notes(console, answer.notes)
    if answer.not_here:
        console.print(Text.assemble(("\nhere  ", "yellow"), answer.not_here), soft_wrap=True)


def show_resolved(console: Console, config: SpeculativeConfig, as_of: str | None = None) -> None:
    """Print the configuration, a key per line, and what follows from it."""
    console.print()
    for name, value in config.to_dict().items():
        console.print(Text.assemble(("  " + name, "bold"), f": {json.dumps(value)}"), soft_wrap=True)
    facts = derived(config, as_of)
    words = [
        "lossless" if facts["lossless"] else "LOSSY: the output changes",
        f"{facts['rows_per_step']} rows a step",
        f"{facts['extra_slots']} extra drafting slots",
        f"KV lookahead {facts['kv_lookahead']}",
    ]
    console.print("  " + " · ".join(words), style="dim", soft_wrap=True)


def show_notes(console: Console, notes: tuple[Note, ...]) -> None:
    """Print every decision and its reason, a line each."""
    if notes:
        console.print()
    for note in notes:
        label = {"vllm": "vLLM"}.get(note.kind, note.kind)
        refuses = " (vLLM refuses)" if note.refused and note.kind != "translated" else ""
        style = STYLES.get(note.kind, "dim")
        line = Text.assemble((f"{label:<12}", style), (note.key, "bold"), (refuses, "red"), f"  {note.text}")
        console.print(line, soft_wrap=not console.is_terminal)


def show_profiles(console: Console, answers: list[tuple[ConfigProfile, CheckedConfig]]) -> None:
    """Print every profile resolved, one after the other."""
    for i, (profile, answer) in enumerate(answers):
        assert answer.config is not None
        title = (profile.name, "bold underline")
        console.print(Text.assemble("\n" if i else "", title, f"  {profile.when}"), soft_wrap=True)
        show_resolved(console, answer.config)
        show_notes(console, answer.notes)
        if answer.not_here:
            console.print(Text.assemble(("here  ", "yellow"), answer.not_here), soft_wrap=True)
