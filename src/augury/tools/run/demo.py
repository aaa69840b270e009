"""`augury demo`: three prompts answered live, then what speculation brought, in figures.

Two of the prompts are edits, whose answers are largely in the prompt, and one is an open question. They were chosen by
trying: the embedded model has 135 million weights, and these it answers well. Asked to change one value in a JSON file
it copies the file unchanged.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from augury.config.sampling import SamplingParams
from augury.tools.run.screen import answer_live, show_table, show_title
from augury.tools.shared.loading import chat_prompt, conditions, load, without_drafts
from augury.tools.shared.runs import Run, follow
from augury.tools.shared.terminal import output_console, print_json, saying

if TYPE_CHECKING:
    from augury.engine.llm import LLM

SPECULATION = {"method": "ngram", "num_speculative_tokens": 8, "prompt_lookup_min": 2, "prompt_lookup_max": 4}
ROUNDS = 3  # timed runs of each kind at most; the run that was watched warms up and is not timed
PATIENCE = 27.0  # seconds after which no further round begins

_CODE = """```python
class Stack:
    # start empty
    def __init__(self):
        self.items = []

    # put on top
    def push(self, item):
        self.items.append(item)

    # take from the top
    def pop(self):
        return self.items.pop()
```"""

_JSON = (
    '{"name": "Ada Lovelace", "role": "engineer", "city": "London", "email": "ada@example.com", '
    '"phone": "555-0142", "active": true, "team": "engines"}'
)


@dataclass(frozen=True, slots=True)
class DemoPrompt:
    """A question, and what to call it."""

    title: str
    question: str

    @property
    def messages(self) -> list[dict[str, str]]:
        """The question as a conversation."""
        return [{"role": "user", "content": self.question}]


PROMPTS = (
    DemoPrompt("Edit code", f"Remove the comments from this code:\n{_CODE}"),
    DemoPrompt("Rewrite JSON", f"Format this JSON with one field on each line:\n{_JSON}"),
    DemoPrompt("Open question", "Explain photosynthesis in two sentences."),
)


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
        show_title(console)
        for number, prompt in enumerate(PROMPTS, 1):
            answer_live(console, llm, number, prompt, params)
    duels = _measure(llm, params, begun, quiet=as_json)
    facts = _conditions(llm, params, len(duels[0].plain))
    if as_json:
        print_json({"prompts": [duel.record() for duel in duels], "conditions": facts})
    else:
        show_table(console, duels, facts, time.perf_counter() - begun)


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
