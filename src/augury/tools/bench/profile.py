"""`augury bench --profile`: how much of a decode step is not the target's matrices and attention, and where it goes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE
from rich.table import Table

from augury.tools.bench.clock import CORE, PARTS, Steps, watched
from augury.tools.bench.plan import limit_threads

if TYPE_CHECKING:
    from augury.engine.llm import LLM
    from augury.tools.bench.plan import BenchPlan


@dataclass(frozen=True, slots=True)
class Profile:
    """The mean decode step of one contender on one prompt set at one batch size."""

    prompts: str
    batch: int
    contender: str
    steps: int
    tokens: int  # emitted in those steps
    step_ms: float
    median_ms: float  # far below the mean: the machine was not quiet
    reading_ms: float  # for a token of a prompt, in steps that read prompts
    parts_ms: dict[str, float]

    @property
    def outside(self) -> float:
        """The share of the step outside the target's matrices and attention."""
        return 1 - sum(self.parts_ms[part] for part in CORE) / self.step_ms if self.step_ms else 0.0


def profile_of(prompts: str, batch: int, contender: str, watch: Steps) -> Profile:
    """Average the steps; the parts add up to the step."""
    steps = watch.decode
    parts = {part: 1000 * sum(step.get(part, 0.0) for step in steps) / max(1, len(steps)) for part in PARTS}
    middle = 1000 * median(sum(step.values()) for step in steps) if steps else 0.0
    reading = 1000 * watch.read_seconds / max(1, watch.read_tokens)
    whole = sum(parts.values())
    return Profile(prompts, batch, contender, len(steps), watch.tokens, whole, middle, reading, parts)


def run_profile(plan: BenchPlan, as_json: bool = False) -> list[Profile]:
    """Profile plain and speculative decoding at every batch size, and print it."""
    from augury.tools.bench.plan import conditions_of, find_weights, tokenize
    from augury.tools.bench.screen import conditions_line
    from augury.tools.shared.terminal import output_console, print_json, waiting

    limit_threads(plan.threads)  # before torch loads
    directory, _ = find_weights(plan.model, as_json)
    prompts = {name: every[: max(plan.batches)] for name, every in tokenize(plan.prompts, directory).items()}
    profiles: list[Profile] = []
    for name, speculative in (("augury", None), (f"augury-{plan.speculative['method']}", plan.speculative)):
        if plan.peers and name not in plan.peers:
            continue
        with waiting(f"profiling {name}", as_json, lines=True):
            profiles += _profiles(plan, name, directory, speculative, prompts)
    from augury.kernels.machine import kernels_in_words  # asks LLVM, which only now is surely there

    conditions = conditions_of(plan, {name: len(every) for name, every in prompts.items()}, None)
    conditions["kernels"] = kernels_in_words()
    if as_json:
        print_json({"conditions": conditions, "profiles": [asdict(p) | {"outside": p.outside} for p in profiles]})
    else:
        console = output_console()
        for name in prompts:
            console.print(table_of([p for p in profiles if p.prompts == name], name))
        chosen = "; ".join(f"{what}: {how}" for what, how in conditions["kernels"].items())
        console.print(f"kernels of this machine: {chosen}", style="dim")
        console.print(f"mean of decode steps, prompt reading left out; {conditions_line(conditions)}", style="dim")
    return profiles


def _profiles(
    plan: BenchPlan, name: str, directory: str, speculative: dict[str, Any] | None, prompts: dict[str, list[list[int]]]
) -> list[Profile]:
    """One contender on every set at every batch size."""
    from augury.engine.llm import LLM

    llm = LLM(directory, dtype=plan.dtype, device="cpu", speculative_config=speculative)
    found = []
    for set_name, every in prompts.items():
        for batch in plan.batches:
            groups = [every[i : i + batch] for i in range(0, len(every), batch)]
            _generate(llm, groups[0], min(24, plan.max_tokens))  # kernels are made for the shapes they meet
            with watched(llm.engine) as watch:
                for group in groups * plan.rounds:
                    _generate(llm, group, plan.max_tokens)
            found.append(profile_of(set_name, batch, name, watch))
    return found


def _generate(llm: LLM, group: list[list[int]], max_tokens: int) -> None:
    from augury.config.sampling import SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    llm.reset_prefix_cache()
    llm.generate([{"prompt_token_ids": ids} for ids in group], params, use_tqdm=False)


def table_of(profiles: list[Profile], prompts: str) -> Table:
    """A column for each contender and batch size, a row for each part."""
    title = f"a decode step on {prompts} prompts, by method and batch size: ms, % of the step"
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE)
    table.add_column("part", no_wrap=True)
    for profile in profiles:
        method = profile.contender.partition("-")[2] or "plain"
        table.add_column(f"{method}, {profile.batch}", justify="right", no_wrap=True)
    for part in PARTS:
        if part == PARTS[len(CORE)]:
            table.add_section()
        if any(p.parts_ms[part] for p in profiles):  # layers run in one call, or step by step
            table.add_row(part, *(_cell(p.parts_ms[part], p.step_ms) for p in profiles))
    table.add_section()
    table.add_row("overhead", *(f"{p.outside:.1%}" for p in profiles), style="bold")
    table.add_row("whole step", *(f"{p.step_ms:.2f}     " for p in profiles))
    table.add_row("median step", *(f"{p.median_ms:.2f}     " for p in profiles))
    table.add_row("tokens a step", *(f"{p.tokens / max(1, p.steps):.2f}" for p in profiles))
    table.add_row("reading, ms a token", *(f"{p.reading_ms:.2f}" for p in profiles))
    table.add_row("steps", *(str(p.steps) for p in profiles))
    return table


def _cell(milliseconds: float, step: float) -> str:
    return f"{milliseconds:.2f} {100 * milliseconds / step if step else 0:>4.1f}"
