"""`augury demo`: three prompts answered before your eyes, then what speculation brought, in figures."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from augury.config.sampling import SamplingParams
from augury.tools.run.demo_prompts import PROMPTS, DemoPrompt
from augury.tools.shared.loading import chat_prompt, conditions, load, without_drafts
from augury.tools.shared.runs import Piece, Run, follow
from augury.tools.shared.terminal import UNSAFE, colored, drafted_style, output_console, print_json, saying, summary

if TYPE_CHECKING:
    from augury.engine.llm import LLM

SPECULATION = {"method": "ngram", "num_speculative_tokens": 8, "prompt_lookup_min": 2, "prompt_lookup_max": 4}
ROUNDS = 3  # timed runs of each kind at most; the run that was watched warms up and is not timed
PATIENCE = 27.0  # seconds after which no further round begins
FRAME = 1 / 15  # seconds between two redrawings: often enough for the eye, too seldom to slow the model


@dataclass(slots=True)
class Duel:
    """One prompt, plain against n-gram."""

    prompt: DemoPrompt
    plain: list[Run] = field(default_factory=list)
    ngram: list[Run] = field(default_factory=list)

    @property
    def speeds(self) -> tuple[float, float]:
        """Tokens a second, plain and n-gram: the middle run of each."""
        return median(run.speed for run in self.plain), median(run.speed for run in self.ngram)

    @property
    def speedup(self) -> float:
        """How many times faster n-gram was."""
        plain, ngram = self.speeds
        return ngram / plain if plain else 0.0

    @property
    def identical(self) -> bool:
        """Whether every run, plain or not, gave the same tokens."""
        return all(run.token_ids == self.plain[0].token_ids for run in (*self.plain, *self.ngram))

    def record(self) -> dict[str, Any]:
        """For --json."""
        plain, ngram = self.speeds
        return {
            "name": self.prompt.title,
            "messages": self.prompt.messages,
            "text": self.ngram[-1].text,
            "plain_tokens_per_second": round(plain, 2),
            "ngram_tokens_per_second": round(ngram, 2),
            "speedup": round(self.speedup, 3),
            "identical": self.identical,
            "plain": [run.metrics() for run in self.plain],
            "ngram": [run.metrics() for run in self.ngram],
        }


def demo(max_tokens: int, as_json: bool) -> None:
    """Show the main job, and measure it."""
    begun = time.perf_counter()
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
    llm = load("default", quiet=as_json, speculative_config=SPECULATION)
    console = output_console()
    if as_json:
        for prompt in PROMPTS:
            follow(llm, chat_prompt(llm, prompt.messages), params)
    else:
        _print_title(console)
        for number, prompt in enumerate(PROMPTS, 1):
            _answer(console, llm, number, prompt, params)
    duels = _measure(llm, params, begun, quiet=as_json)
    facts = _conditions(llm, params, len(duels[0].plain))
    if as_json:
        print_json({"prompts": [duel.record() for duel in duels], "conditions": facts})
    else:
        _print_table(console, duels, facts, time.perf_counter() - begun)


def _measure(llm: LLM, params: SamplingParams, begun: float, quiet: bool) -> list[Duel]:
    """Time both ways in turns, so that a busy machine hits both alike; another round only if there is time for it."""
    duels = [Duel(prompt) for prompt in PROMPTS]
    with saying(quiet) as say:
        for turn in range(1, ROUNDS + 1):
            start = time.perf_counter()
            for duel in duels:
                tokens = chat_prompt(llm, duel.prompt.messages)
                say(f"measuring, round {turn}: {duel.prompt.title}, plain")
                with without_drafts(llm):
                    duel.plain.append(follow(llm, tokens, params))
                say(f"measuring, round {turn}: {duel.prompt.title}, n-gram")
                duel.ngram.append(follow(llm, tokens, params))
            now = time.perf_counter()
            if now - begun + (now - start) > PATIENCE:
                break
    return duels


def _conditions(llm: LLM, params: SamplingParams, rounds: int) -> dict[str, Any]:
    return {
        **conditions(llm, params),
        "model": f"SmolLM2-135M-Instruct ({llm.config.model})",
        "speculative_config": SPECULATION,
        "max_tokens": params.max_tokens,
        "rounds": rounds,
    }


def _print_title(console: Console) -> None:
    legend = Text("Text in ") + Text("this colour" if not console.no_color else "bold", drafted_style(console))
    legend += Text(" was guessed by looking back, and accepted by the model; the rest it wrote one token at a time.")
    console.print()
    console.print("Augury · SmolLM2-135M-Instruct on this machine, with n-gram speculation", style="bold")
    if console.is_terminal:
        console.print(legend)


def _answer(console: Console, llm: LLM, number: int, prompt: DemoPrompt, params: SamplingParams) -> None:
    """Answer one prompt: live in a frame on a terminal, as text in a pipe."""
    console.print()
    console.print(f"{number}. {prompt.title}", style="bold")
    console.print(Text(prompt.question, "dim"))
    tokens = chat_prompt(llm, prompt.messages)
    if not console.is_terminal:
        run = follow(llm, tokens, params)
        console.print(Group(Text(), Text(run.text.translate(UNSAFE)), Text(f"({summary(run, True)})")))
        return
    frame = _Frame(console)
    with Live(frame.panel(), console=console, auto_refresh=False) as live:
        frame.live = live
        run = follow(llm, tokens, params, frame.add)
        live.update(frame.panel(run), refresh=True)


class _Frame:
    """An answer growing in a panel."""

    def __init__(self, console: Console) -> None:
        self.live: Live | None = None
        self._style = drafted_style(console)
        self._text = Text()
        self._drawn = 0.0
        self._width = min(console.width, 100)

    def add(self, pieces: list[Piece], run: Run) -> None:
        """Take what a step brought; redraw if it is time."""
        self._text.append_text(colored(pieces, self._style))
        now = time.perf_counter()
        if self.live is not None and now - self._drawn >= FRAME:
            self._drawn = now
            self.live.update(self.panel(run), refresh=True)

    def panel(self, run: Run | None = None) -> Panel:
        """The frame as it stands."""
        figures = "reading the prompt"
        if run is not None:
            figures = f"{len(run.token_ids)} tokens in {run.steps} passes · {run.speed:.0f} tok/s"
        return Panel(
            self._text, box=box.ROUNDED, border_style="dim", width=self._width, subtitle=figures, subtitle_align="right"
        )


def _print_table(console: Console, duels: list[Duel], facts: dict[str, Any], seconds: float) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("prompt", vertical="bottom")
    for name in ("plain\ntok/s", "n-gram\ntok/s", "speed-up", "drafts\naccepted", "acceptance\nlength", "same\ntext"):
        table.add_column(name, justify="right")
    for duel in duels:
        plain, ngram = duel.speeds
        spec = duel.ngram[-1].spec
        faster = "green" if duel.speedup >= 1.05 else ""
        table.add_row(
            duel.prompt.title, f"{plain:.1f}", f"{ngram:.1f}", Text(f"{duel.speedup:.2f}x", faster),
            f"{spec.acceptance_rate:.0%}" if spec.num_drafts else "none made",
            f"{spec.acceptance_length:.2f}" if spec.num_drafts else "-",
            "yes" if duel.identical else "NO",
        )  # fmt: skip
    console.print()
    console.print(table)
    threads = f"{facts['device']}, {facts['threads']} threads"
    lookup = f"{SPECULATION['prompt_lookup_min']} to {SPECULATION['prompt_lookup_max']} tokens looked up"
    runs = f"median of {facts['rounds']} runs each, in turns" if facts["rounds"] > 1 else "one run each"
    for line in (
        "Accepted: share of drafted tokens the model kept. Length: tokens per pass that had a draft, its own included.",
        f"{facts['model']}, {facts['dtype']}, {threads}, torch {facts['torch']}, temperature {facts['temperature']:g}, "
        f"K={facts['K']}, {lookup}, one prompt at a time, up to {facts['max_tokens']} tokens, "
        f"{runs}, timed from the first token. Whole demo: {seconds:.0f} s.",
    ):
        console.print(line, style="dim")
