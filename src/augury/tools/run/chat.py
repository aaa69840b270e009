"""A chat in a terminal: a prompt, answers streamed in colour, and slash commands."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.text import Text

from augury.config.errors import ConfigError
from augury.observe.stats import SpecStats
from augury.tools.run.chat_sources import Chunk, Messages, NextAnswer, Source
from augury.tools.shared.terminal import UNSAFE, drafted_style, output_console

HELP = """\
/stats     this conversation in figures
/plain     switch speculation off, and on again; the text stays the same
/seed N    sample with this seed; /seed alone clears it
/clear     forget the conversation
/help      this list
Ctrl-C stops an answer; at the prompt it quits, as Ctrl-D does."""


@dataclass(slots=True)
class ChatTally:
    """Figures of one or more answers."""

    tokens: int = 0
    passes: int = 0
    spec: SpecStats = field(default_factory=SpecStats)
    timed: int = 0  # tokens after the first pass, which is prefill
    seconds: float = 0.0  # taken by those tokens

    def step(self, step: dict[str, Any]) -> None:
        """Count one forward pass from its trace."""
        draft = step.get("draft", {"ids": [], "accepted": []})
        self.tokens += len(step["tokens"])
        self.passes += 1
        self.spec.observe(len(draft["ids"]), len(draft["accepted"]), len(draft["accepted"]))

    def told(self, metrics: dict[str, Any]) -> None:
        """Add a server's own speculation figures, for when its passes are not reported."""
        self.spec.num_drafts += metrics.get("num_spec_steps") or 0
        self.spec.num_draft_tokens += metrics.get("num_draft_tokens") or 0
        self.spec.num_accepted_tokens += metrics.get("num_accepted_draft_tokens") or 0

    def add(self, other: ChatTally) -> None:
        """Add another answer's figures."""
        self.tokens += other.tokens
        self.passes += other.passes
        self.timed += other.timed
        self.seconds += other.seconds
        self.spec.num_drafts += other.spec.num_drafts
        self.spec.num_draft_tokens += other.spec.num_draft_tokens
        self.spec.num_accepted_tokens += other.spec.num_accepted_tokens

    def words(self) -> str:
        """The figures in one line."""
        parts = [f"{self.tokens} tokens"]
        if self.passes:
            parts.append(f"{self.passes} passes")
        if self.seconds > 0:
            parts.append(f"{self.timed / self.seconds:.1f} tok/s")
        if self.spec.num_drafts:
            parts.append(f"{self.spec.acceptance_rate:.0%} of {self.spec.num_draft_tokens} drafted tokens accepted")
            parts.append(f"mean length {self.spec.acceptance_length:.2f}")
        return " · ".join(parts)


class Stop:
    """Ctrl-C ends an answer after the current step, or at once if pressed again or if that is safe (`at_once`)."""

    def __init__(self, at_once: bool) -> None:
        self.pressed = False
        self._at_once = at_once

    def _press(self, *_: Any) -> None:
        if self._at_once or self.pressed:
            self.pressed = True
            raise KeyboardInterrupt
        self.pressed = True

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Handle Ctrl-C for the duration of an answer."""
        before = signal.signal(signal.SIGINT, self._press)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)


class ChatLoop:
    """Reads questions and slash commands, and shows the answers."""

    def __init__(self, source: Source, begun: Messages, settings: NextAnswer) -> None:
        self.source, self.begun, self.settings = source, begun, settings
        self.messages = list(begun)
        self.whole = ChatTally()
        self.console = output_console()
        self.styles = styles(self.console)

    def run(self) -> None:
        """Read questions and answer them until the user leaves."""
        with suppress(ImportError):
            import readline  # noqa: F401  # enables line editing and history
        self.console.print(self.source.title.translate(UNSAFE), style="bold")
        if self.source.ours:
            self.console.print(self._legend())
        self.console.print("/help lists the commands.", style="dim")
        while True:
            try:
                line = input("> ").strip()
            except (EOFError, KeyboardInterrupt):
                self.console.print()
                return
            if line.startswith("/"):
                self._command(line)
            elif line:
                self._answer(line)

    def _legend(self) -> Text:
        names = {"draft": "accepted draft", "correction": "after a rejection", "bonus": "bonus"}
        text = Text("plain")
        for origin, name in names.items():
            text.append(" · ", "dim").append(name, self.styles[origin])
        return text

    def _answer(self, question: str) -> None:
        asked = [*self.messages, {"role": "user", "content": question}]
        tally, stop, text = ChatTally(), Stop(self.source.breakable), ""
        chunks = self.source.ask(asked, self.settings)
        try:
            with stop.listening():
                for chunk in self._timed(chunks, tally):
                    text += chunk.text
                    self._show(chunk)
                    if stop.pressed:
                        break
        except KeyboardInterrupt:
            if not self.source.breakable:
                raise
        except ConfigError as error:
            self.console.print(f"error: {error}".translate(UNSAFE), style="red", markup=False)
        finally:
            chunks.close()  # type: ignore[attr-defined]
        if text:
            self.messages = [*asked, {"role": "assistant", "content": text}]
            self.whole.add(tally)
            self.console.print()
        if text or stop.pressed:
            self.console.print(tally.words() + (" · stopped" if stop.pressed else ""), style="dim")

    def _timed(self, chunks: Iterator[Chunk], tally: ChatTally) -> Iterator[Chunk]:
        """Pass chunks through while counting them; time runs from the first text to the last."""
        first, before, pieces = 0.0, 0, 0
        for chunk in chunks:
            for step in chunk.steps:
                tally.step(step)
            if chunk.metrics and not tally.passes:
                tally.told(chunk.metrics)
            if chunk.text:
                pieces += 1
                now = time.perf_counter()
                if not first:
                    first, before = now, tally.tokens or 1
                tally.seconds = now - first
            tally.tokens = tally.tokens if tally.passes else chunk.tokens or pieces
            tally.timed = tally.tokens - before
            yield chunk

    def _show(self, chunk: Chunk) -> None:
        """Print a chunk by origin; as plain text if its pieces do not add up, as with an incomplete character."""
        pieces = [(token["text"], origin(token)) for step in chunk.steps for token in step["tokens"]]
        if "".join(text for text, _ in pieces) != chunk.text:
            pieces = [(chunk.text, "plain")]
        line = Text()
        for text, name in pieces:
            line.append(text.translate(UNSAFE), self.styles[name])
        self.console.print(line, end="", soft_wrap=True)

    def _command(self, line: str) -> None:
        name, _, rest = line.partition(" ")
        if name == "/stats":
            self.console.print(self.whole.words(), style="dim")
        elif name == "/plain":
            self._plain()
        elif name == "/seed":
            self._seed(rest.strip())
        elif name == "/clear":
            self.messages, self.whole = list(self.begun), ChatTally()
            self.console.print("the conversation is forgotten", style="dim")
        else:
            if name != "/help":
                self.console.print(f"no command {name}".translate(UNSAFE), style="red", markup=False)
            self.console.print(HELP, style="dim", markup=False)

    def _plain(self) -> None:
        if not self.source.ours:
            self.console.print("this server does not switch speculation by request", style="red")
            return
        self.settings.plain = not self.settings.plain
        self.console.print(f"speculation is {'off' if self.settings.plain else 'on'}", style="dim")

    def _seed(self, given: str) -> None:
        if given and not (given.isdecimal() and int(given) < 2**63):
            self.console.print("/seed takes a whole number from 0 on", style="red")
            return
        self.settings.seed = int(given) if given else None
        self.console.print(f"seed {self.settings.seed}" if given else "no seed", style="dim")


def origin(token: dict[str, Any]) -> str:
    """A traced token's origin: bonus, draft, correction or plain."""
    return "bonus" if token.get("bonus") else str(token["from"])


def styles(console: Console) -> dict[str, str]:
    """The style of tokens by origin: a colour, or a text attribute if the terminal shows no colour."""
    colour = not console.no_color
    return {
        "plain": "",
        "draft": drafted_style(console),
        "correction": "yellow" if colour else "underline",
        "bonus": "cyan" if colour else "italic",
    }
