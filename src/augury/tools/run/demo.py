"""`augury demo`: answers three prompts live, then shows the speed-up of each drafting method.

One is an edit, whose answer is largely in the prompt, one asks for code, one is an open question. They were chosen by
trial: the embedded model has 135 million weights and answers these well.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from augury.config.fingerprint import fingerprint
from augury.config.installed import installed
from augury.config.sampling import SamplingParams
from augury.tools.run.screen import answer_live, show_table, show_title
from augury.tools.shared.loading import chat_prompt, conditions, load, without_drafts
from augury.tools.shared.runs import Run, follow
from augury.tools.shared.terminal import output_console, print_json, saying

if TYPE_CHECKING:
    from augury.engine.llm import LLM

LOOKING_BACK = {"method": "ngram", "num_speculative_tokens": 8, "prompt_lookup_min": 2, "prompt_lookup_max": 4}
PLAIN = "plain"
ROUNDS = 3  # timed runs of each kind at most
PATIENCE = 60.0  # seconds after which no further round begins; the first is a warm-up, unless it is the only one

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


@dataclass(frozen=True, slots=True)
class DemoPrompt:
    """A question and its title."""

    title: str
    question: str

    @property
    def messages(self) -> list[dict[str, str]]:
        """The question as chat messages."""
        return [{"role": "user", "content": self.question}]


PROMPTS = (
    DemoPrompt("Edit code", f"Remove the comments from this code:\n{_CODE}"),
    DemoPrompt("Write code", "Write a Python function that returns the factorial of a number."),
    DemoPrompt("Open question", "Explain photosynthesis in two sentences."),
)


@dataclass(slots=True)
class DemoRace:
    """One prompt, answered with every drafting method and without."""

    prompt: DemoPrompt
    runs: dict[str, list[Run]] = field(default_factory=dict)  # by method; plain decoding first

    @property
    def timed(self) -> dict[str, list[Run]]:
        """The timed runs, without the warm-up unless it is the only run."""
        return {way: runs[1:] or runs for way, runs in self.runs.items()}

    def speed(self, way: str) -> float:
        """Tokens per second of the median run."""
        return median(run.speed for run in self.timed[way])

    def speedup(self, way: str) -> float:
        """The speed relative to plain decoding."""
        plain = self.speed(PLAIN)
        return self.speed(way) / plain if plain else 0.0

    @property
    def identical(self) -> bool:
        """Whether all runs of all methods gave the same tokens."""
        first = self.runs[PLAIN][0].token_ids
        return all(run.token_ids == first for runs in self.runs.values() for run in runs)

    def record(self) -> dict[str, Any]:
        """The results as JSON."""
        return {
            "name": self.prompt.title,
            "messages": self.prompt.messages,
            "text": self.runs[PLAIN][-1].text,
            "identical": self.identical,
            "ways": {
                way: {
                    "tokens_per_second": round(self.speed(way), 2),
                    "speedup": round(self.speedup(way), 3),
                    "runs": [run.metrics() for run in runs],
                }
                for way, runs in self.timed.items()
            },
        }


def demo(max_tokens: int, as_json: bool) -> None:
    """Run the demo: show answers with speculation, then measure it."""
    begun = time.perf_counter()
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
    engines = contenders(quiet=as_json)
    best = list(engines)[-1]
    console = output_console()
    if not as_json:
        show_title(console, best)
        for number, prompt in enumerate(PROMPTS, 1):
            answer_live(console, engines[best], number, prompt, params)
    races = _measure(engines, params, begun, quiet=as_json)
    facts = _conditions(engines, params, max(1, len(races[0].runs[PLAIN]) - 1))
    if as_json:
        print_json({"prompts": [race.record() for race in races], "conditions": facts})
    else:
        show_table(console, races, facts, time.perf_counter() - begun)


def contenders(quiet: bool) -> dict[str, LLM]:
    """An engine per drafting method: n-gram, and the first installed drafter for the embedded model.

    A package lists its best drafter first; running all of them would take minutes and more than 80 columns.
    """
    from augury.engine.llm import LLM

    first = load("default", quiet=quiet, speculative_config=LOOKING_BACK)
    found = {str(LOOKING_BACK["method"]): first}
    mark = fingerprint(first.model_path)
    best = next((one for one in installed() if one.fingerprint == mark), None)
    if best is not None:
        # A fixed K; adapted, the figures would show what the machine allows instead of what the drafter predicts.
        wanted = {"method": best.method, "num_speculative_tokens": best.tokens, **best.settings}
        length = first.config.max_model_len
        found[best.directory.name] = LLM("default", weights_of=first, max_model_len=length, speculative_config=wanted)
    return found


def _measure(engines: dict[str, LLM], params: SamplingParams, begun: float, quiet: bool) -> list[DemoRace]:
    """Time all methods in turns, so that other load affects all alike; start another round only if time allows."""
    races = [DemoRace(prompt) for prompt in PROMPTS]
    plain = next(iter(engines.values()))
    with saying(quiet) as say:
        for turn in range(ROUNDS + 1):
            start, name = time.perf_counter(), f"round {turn}" if turn else "warm-up round"
            for race in races:
                tokens = chat_prompt(plain, race.prompt.messages)
                say(f"measuring, {name}: {race.prompt.title}, plain")
                with without_drafts(plain):
                    race.runs.setdefault(PLAIN, []).append(follow(plain, tokens, params))
                for way, llm in engines.items():
                    say(f"measuring, {name}: {race.prompt.title}, {way}")
                    race.runs.setdefault(way, []).append(follow(llm, tokens, params))
            now = time.perf_counter()
            if now - begun + (now - start) > PATIENCE:
                break
    return races


def _conditions(engines: dict[str, LLM], params: SamplingParams, rounds: int) -> dict[str, Any]:
    first = next(iter(engines.values()))
    specs = {way: llm.config.speculative_config for way, llm in engines.items()}
    return {
        **conditions(first, params),
        "model": f"SmolLM2-135M-Instruct ({first.config.model})",
        "K": {way: spec.num_speculative_tokens for way, spec in specs.items() if spec is not None},
        "max_tokens": params.max_tokens,
        "rounds": rounds,
    }
