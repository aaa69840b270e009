"""The output of `augury generate` and `augury demo`: answers with accepted drafts in colour, and a table."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from augury.tools.shared.loading import chat_prompt
from augury.tools.shared.runs import Piece, Run, follow
from augury.tools.shared.terminal import UNSAFE, colored, drafted_style, output_console, summary

if TYPE_CHECKING:
    from augury.config.sampling import SamplingParams
    from augury.engine.llm import LLM
    from augury.engine.outputs import CompletionOutput, RequestOutput
    from augury.tools.run.demo import DemoPrompt, DemoRace

WIDEST = 500  # columns within which a table's natural width is measured
FRAME = 1 / 15  # seconds between redraws: often enough for the eye, rarely enough not to slow the model


def stream(llm: LLM, prompt: Any, params: SamplingParams) -> None:
    """Answer one prompt: in colour on a terminal, as plain text in a pipe."""
    console = output_console()
    style = drafted_style(console)

    def show(pieces: list[Piece], _: Run) -> None:
        if console.is_terminal:
            console.print(colored(pieces, style), end="", soft_wrap=True)
        else:
            sys.stdout.write("".join(piece.text for piece in pieces))
            sys.stdout.flush()

    run = follow(llm, prompt, params, show)
    print()
    if console.is_terminal:
        speculating = llm.config.speculative_config is not None
        if speculating:
            console.print("accepted drafts", style=style, end=" · ")
        console.print(summary(run, speculating), style="dim")


def show_answers(outputs: list[RequestOutput], llm: LLM, params: SamplingParams) -> None:
    """Print the answers to several prompts, each after its number."""
    console = output_console()
    style = drafted_style(console)
    decode = llm.tokenizer.decoder(params.skip_special_tokens)
    for i, output in enumerate(outputs, 1):
        for answer in output.outputs:
            name = f"--- prompt {i}" + (f", answer {answer.index + 1}" if params.n > 1 else "")
            console.print(name, style="dim")
            if console.is_terminal and not output.error:
                console.print(_colored_answer(output.prompt_token_ids, answer, decode, style), soft_wrap=True)
            else:
                print(answer.text)


def _colored_answer(prompt: list[int], answer: CompletionOutput, decode: Any, style: str) -> Text:
    """A finished answer with its accepted drafts marked."""
    from augury.engine.text import TextStream

    growing, pieces = TextStream(decode, prompt), []
    for token, drafted in zip(answer.token_ids, answer.from_draft, strict=True):
        before = len(growing.text)
        growing.push(token)
        pieces.append(Piece(growing.text[before:], drafted))
    return colored(pieces, style)[: len(answer.text.translate(UNSAFE))]


def show_title(console: Console, way: str) -> None:
    """Print the demo's first lines."""
    legend = Text("Text in ") + Text("this colour" if not console.no_color else "bold", drafted_style(console))
    legend += Text(" was drafted, and accepted by the model; the rest it wrote one token at a time.")
    console.print()
    console.print(f"Augury · SmolLM2-135M-Instruct on this machine, with {way} drafts", style="bold")
    if console.is_terminal:
        console.print(legend)


def answer_live(console: Console, llm: LLM, number: int, prompt: DemoPrompt, params: SamplingParams) -> None:
    """Answer one prompt of the demo: live in a frame on a terminal, as text in a pipe."""
    console.print()
    console.print(f"{number}. {prompt.title}", style="bold")
    console.print(Text(prompt.question, "dim"))
    tokens = chat_prompt(llm, prompt.messages)
    if not console.is_terminal:
        run = follow(llm, tokens, params)
        console.print(Group(Text(), Text(run.text.translate(UNSAFE)), Text(f"({summary(run, True)})")))
        return
    text, style, width, drawn = Text(), drafted_style(console), min(console.width, 100), 0.0

    def panel(run: Run | None = None) -> Panel:
        figures = "reading the prompt"
        if run is not None:
            figures = f"{len(run.token_ids)} tokens in {run.steps} passes · {run.speed:.0f} tok/s"
        return Panel(text, box=box.ROUNDED, border_style="dim", width=width, subtitle=figures, subtitle_align="right")

    def add(pieces: list[Piece], run: Run) -> None:
        nonlocal drawn
        text.append_text(colored(pieces, style))
        if (now := time.perf_counter()) - drawn >= FRAME:
            drawn = now
            live.update(panel(run), refresh=True)

    with Live(panel(), console=console, auto_refresh=False) as live:
        live.update(panel(follow(llm, tokens, params, add)), refresh=True)


def show_table(console: Console, races: list[DemoRace], facts: dict[str, Any], seconds: float) -> None:
    """Print the demo's figures and their conditions."""
    ways, table = list(facts["K"]), _wide_table(races, list(facts["K"]))
    if console.measure(table, options=console.options.update_width(WIDEST)).maximum > console.width:
        table = _tall_table(races, ways)
    console.print()
    console.print(table)
    runs = (
        f"median of {facts['rounds']} runs each, in turns" if facts["rounds"] > 1 else "one run each: noise is likely"
    )
    drafts = ", ".join(f"{way} K={tokens}" for way, tokens in facts["K"].items())
    for line in (
        "Speed-up: over plain decoding. Length: the acceptance length, tokens a pass that had a draft, "
        "the model's own included.",
        f"{facts['model']}, {facts['dtype']}, {facts['device']}, {facts['threads']} threads, torch {facts['torch']}, "
        f"temperature {facts['temperature']:g}, {drafts}, one prompt at a time, "
        f"up to {facts['max_tokens']} tokens, {runs}, timed from the first token. Whole demo: {seconds:.0f} s.",
    ):
        console.print(line, style="dim")


def _wide_table(races: list[DemoRace], ways: list[str]) -> Table:
    """A table with one row per prompt."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("prompt", vertical="bottom")
    for name in ("plain\ntok/s", *(f"{way}\n{part}" for way in ways for part in ("speed-up", "length")), "same\ntext"):
        table.add_column(name, justify="right", vertical="bottom")
    for race in races:
        cells = [cell for way in ways for cell in _figures(race, way)]
        table.add_row(race.prompt.title, f"{race.speed('plain'):.1f}", *cells, _same(race))
    return table


def _tall_table(races: list[DemoRace], ways: list[str]) -> Table:
    """A table with one row per drafting method under each prompt."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("prompt")
    for name in ("speed-up", "length"):
        table.add_column(name, justify="right")
    for race in races:
        table.add_row(race.prompt.title)
        table.add_row("  plain", f"{race.speed('plain'):.1f} tok/s")
        for way in ways:
            table.add_row(f"  {way}", *_figures(race, way))
        table.add_row("  same text", _same(race), end_section=True)
    return table


def _figures(race: DemoRace, way: str) -> tuple[Text, str]:
    """Speed-up and acceptance length."""
    spec, times = race.runs[way][-1].spec, race.speedup(way)
    length = f"{spec.acceptance_length:.2f}" if spec.num_drafts else "-"
    return Text(f"{times:.2f}x", "green" if times >= 1.05 else ""), length


def _same(race: DemoRace) -> str:
    return "yes" if race.identical else "NO"
