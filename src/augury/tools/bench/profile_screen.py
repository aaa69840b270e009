"""A profile for the terminal: the machine and its kernels, then a table for each prompt set and arithmetic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE
from rich.table import Table

from augury.tools.bench.clock import CORE, LAYERS, PARTS
from augury.tools.bench.screen import conditions_line

if TYPE_CHECKING:
    from rich.console import Console

    from augury.tools.bench.profile import Profile
    from augury.tools.bench.profile_forms import Forms

# The keys of kernels/chosen.py, and their labels.
LABELS = {
    "processor": "processor",
    "vectors": "vectors",
    "byte_products": "sums of products of bytes",
    "bfloat16_products": "products of bfloat16",
    "kernels": "kernels",
    "packed_exact": "packed weights, exact",
    "packed_fast": "packed weights, fast",
    "packed_tiles": "tiles of packed weights",
    "float32_weights": "float32 weights",
    "bfloat16_weights": "bfloat16 weights",
    "prompts": "prompts",
    "attention": "attention",
    "threads": "threads",
    "compiled_code": "compiled code",
}
PIPED = 1000  # characters in a line without a terminal: paths must not be broken


def profile_console() -> Console:
    """A console as wide as the terminal, or PIPED characters wide if there is none."""
    from augury.tools.shared.terminal import output_console

    console = output_console()
    if not console.is_terminal:
        console.width = PIPED
    return console


def show_chosen(console: Console, machine: dict[str, str], chosen: dict[str, str]) -> None:
    """Print what the machine has, and the kernels chosen for it."""
    facts = Table(title="this machine, and the kernels chosen for it", show_header=False, **_STYLE)
    facts.add_column("", no_wrap=True)
    facts.add_column("", overflow="fold")
    for part in (machine, chosen):
        for name, words in part.items():
            facts.add_row(LABELS[name], words)
        facts.add_section()
    console.print(facts)


def show_profiles(console: Console, profiles: list[Profile], forms: list[Forms]) -> None:
    """Print the forms of the weights, and a table for each arithmetic and prompt set."""
    for words in dict.fromkeys(map(str, forms)):
        who = ", ".join(form.contender for form in forms if str(form) == words)
        console.print(f"{who}: {words}", soft_wrap=not console.is_terminal)
    for arithmetic, prompts in dict.fromkeys((p.arithmetic, p.prompts) for p in profiles):
        every = [p for p in profiles if (p.arithmetic, p.prompts) == (arithmetic, prompts)]
        while every:
            fitting = next(n for n in range(len(every), 0, -1) if n == 1 or _fits(console, table_of(every[:n])))
            console.print(table_of(every[:fitting]))
            every = every[fitting:]


def show_conditions(console: Console, conditions: dict[str, Any]) -> None:
    """Print what the figures mean, and what they depend on."""
    wrap = not console.is_terminal
    told = "mean of decode steps, prompt reading left out; overhead: outside the target's matrices and attention."
    apart = "> parts of layers in one call: their shares when the layers run step by step."
    console.print(f"{told} {apart}", style="dim", soft_wrap=wrap)
    console.print(conditions_line(conditions), style="dim", soft_wrap=wrap)


def table_of(profiles: list[Profile]) -> Table:
    """A column for each contender and batch size of one prompt set and arithmetic, a row for each part."""
    where = f"{profiles[0].prompts} prompts, {profiles[0].arithmetic}"
    table = Table(title=f"a decode step on {where}; by method and batch: ms, % of the step", **_STYLE)
    table.add_column("part", no_wrap=True)
    for profile in profiles:
        table.add_column(f"{_method(profile)}, {profile.batch}", justify="right", no_wrap=True)
    for part in PARTS:
        if part == PARTS[len(CORE)]:
            table.add_section()
        if any(p.parts_ms[part] for p in profiles):  # layers run in one call, or step by step
            table.add_row(part, *(_cell(p.parts_ms[part], p.step_ms) for p in profiles))
        for step in dict.fromkeys(step for p in profiles for step in p.layers_by_steps if part == LAYERS):
            table.add_row(f"> {step}", *(_cell(p.layers_by_steps.get(step, 0.0), p.step_ms) for p in profiles))
    table.add_section()
    table.add_row("overhead", *(f"{p.outside:.1%}" for p in profiles), style="bold")
    table.add_row("whole step", *(f"{p.step_ms:.2f}     " for p in profiles))
    table.add_row("median step", *(f"{p.median_ms:.2f}     " for p in profiles))
    table.add_row("tokens a step", *(f"{p.tokens / max(1, p.steps):.2f}" for p in profiles))
    table.add_row("reading, ms a token", *(f"{p.reading_ms:.2f}" for p in profiles))
    table.add_row("steps", *(str(p.steps) for p in profiles))
    return table


_STYLE: dict[str, Any] = {"title_justify": "left", "title_style": "bold", "box": SIMPLE}


def _fits(console: Console, table: Table) -> bool:
    """Whether the table fits without cutting any figure."""
    return console.measure(table, options=console.options.update(width=PIPED)).maximum <= console.width


def _method(profile: Profile) -> str:
    """The contender's name without the engine and the arithmetic, which the title says; `plain` if nothing is left."""
    method = profile.contender.partition("-")[2].removesuffix("fast").removesuffix("-")
    return method or "plain"


def _cell(milliseconds: float, step: float) -> str:
    return f"{milliseconds:.2f} {100 * milliseconds / step if step else 0:>4.1f}"
