"""`augury bench --profile`: what kernels run here, and where the time of a decode step goes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import TYPE_CHECKING

from augury.config.errors import ConfigError
from augury.tools.bench.clock import CORE, LAYER_STEPS, LAYERS, PARTS, Steps, watched
from augury.tools.bench.contenders import ARITHMETICS, AUGURY, Contender, all_contenders, choose
from augury.tools.bench.plan import limit_threads
from augury.tools.bench.profile_forms import Forms, forms_of, layers_step_by_step

if TYPE_CHECKING:
    from augury.engine.llm import LLM
    from augury.tools.bench.plan import BenchPlan

WARM_UP_TOKENS = 24
Prompts = dict[str, list[list[int]]]  # token ids by set


@dataclass(frozen=True, slots=True)
class Profile:
    """The mean decode step of one contender on one prompt set at one batch size."""

    prompts: str
    batch: int
    contender: str
    arithmetic: str
    steps: int
    tokens: int  # emitted in those steps
    step_ms: float
    median_ms: float  # far below the mean: the machine was not quiet
    reading_ms: float  # per prompt token, in steps with prefill
    parts_ms: dict[str, float]
    layer_steps_ms: dict[str, float] = field(default_factory=dict)  # of layers in one call, when run step by step

    @property
    def outside(self) -> float:
        """The share of the step outside the target's matrices and attention."""
        return 1 - sum(self.parts_ms[part] for part in CORE) / self.step_ms if self.step_ms else 0.0

    @property
    def layers_by_steps(self) -> dict[str, float]:
        """The milliseconds of layers in one call, split in proportion to their steps when those run one by one."""
        whole = sum(self.layer_steps_ms.values())
        return {step: self.parts_ms[LAYERS] * ms / whole for step, ms in self.layer_steps_ms.items()} if whole else {}


def profile_of(prompts: str, batch: int, contender: Contender, watch: Steps, by_steps: Steps | None = None) -> Profile:
    """Average the steps; the parts add up to the step."""
    steps, parts = watch.decode, mean_ms(watch, PARTS)
    return Profile(
        prompts,
        batch,
        contender.name,
        contender.arithmetic,
        len(steps),
        watch.tokens,
        sum(parts.values()),
        1000 * median(sum(step.values()) for step in steps) if steps else 0.0,
        1000 * watch.read_seconds / max(1, watch.read_tokens),
        parts,
        # Less the time that the head and a drafter spend on the same steps.
        {step: max(0.0, ms - parts[step]) for step, ms in mean_ms(by_steps, LAYER_STEPS).items()} if by_steps else {},
    )


def mean_ms(watch: Steps, parts: tuple[str, ...]) -> dict[str, float]:
    """Milliseconds of each part in the mean decode step."""
    steps = watch.decode
    return {part: 1000 * sum(step.get(part, 0.0) for step in steps) / max(1, len(steps)) for part in parts}


def run_profile(plan: BenchPlan, as_json: bool = False, arithmetics: tuple[str, ...] = ()) -> list[Profile]:
    """Say what was chosen, then profile plain and speculative decoding at every batch size, and print it."""
    from augury.tools.bench.plan import conditions_of, find_weights, is_packed, tokenize
    from augury.tools.bench.profile_screen import profile_console, show_chosen, show_conditions, show_profiles
    from augury.tools.shared.progress import progress
    from augury.tools.shared.terminal import print_json

    limit_threads(plan.threads)  # before torch loads
    directory, gguf = find_weights(plan.model, as_json)
    contenders = contenders_of(plan, arithmetics, gguf, is_packed(directory, plan.dtype))
    from augury.kernels.chosen import choices_in_words, machine_in_words

    machine, chosen, console = machine_in_words(), choices_in_words(), profile_console()
    if not as_json:
        show_chosen(console, machine, chosen)
    prompts = {name: every[: max(plan.batches)] for name, every in tokenize(plan.prompts, directory).items()}
    profiles: list[Profile] = []
    forms: list[Forms] = []
    with progress("loading", len(contenders) * (1 + ticks_of(plan, prompts))) as tick:
        for contender in contenders:
            tick(f"loading {contender.name}")
            form, found = _measured(plan, contender, directory, prompts, tick)
            forms.append(form)
            profiles += found
    conditions = conditions_of(plan, {name: len(every) for name, every in prompts.items()}, None)
    if as_json:
        told = [asdict(p) | {"outside": p.outside, "layers_by_steps_ms": p.layers_by_steps} for p in profiles]
        weights = [asdict(form) for form in forms]
        print_json(
            {"machine": machine, "chosen": chosen, "weights": weights, "conditions": conditions, "profiles": told}
        )
    else:
        show_profiles(console, profiles, forms)
        show_conditions(console, conditions)
    return profiles


def contenders_of(plan: BenchPlan, arithmetics: tuple[str, ...], gguf: str | None, packed: bool) -> list[Contender]:
    """Augury's own contenders: those named, or plain and speculative decoding in each arithmetic."""
    known = all_contenders(plan.configs)
    ours = {name: contender for name, contender in known.items() if contender.make == AUGURY.make}
    for name in plan.peers:
        if name in known and name not in ours:
            raise ConfigError(f"--peers {name}: only Augury's own steps can be profiled ({', '.join(ours)}).")
    if "fast" in arithmetics and not packed:
        raise ConfigError("--cpu-arithmetic fast: these weights have no packed form in this dtype; leave it out.")
    wanted = plan.peers or [
        name
        for name, contender in ours.items()
        if contender.arithmetic in (arithmetics or ARITHMETICS[:1]) and contender.load_format == AUGURY.load_format
    ]
    return sorted(choose(wanted, plan.configs, gguf, packed)[0], key=lambda c: ARITHMETICS.index(c.arithmetic))


def groups_of(every: list[list[int]], batch: int) -> list[list[list[int]]]:
    """Prompts in groups that run concurrently."""
    return [every[i : i + batch] for i in range(0, len(every), batch)]


def ticks_of(plan: BenchPlan, prompts: Prompts) -> int:
    """How many times one contender calls `tick`, apart from loading."""
    cells = [len(groups_of(every, batch)) for every in prompts.values() for batch in plan.batches]
    return sum(1 + plan.rounds * groups for groups in cells)


def _measured(
    plan: BenchPlan, contender: Contender, directory: str, prompts: Prompts, tick: Callable[[str], None]
) -> tuple[Forms, list[Profile]]:
    """Profile one contender on every prompt set at every batch size."""
    from augury.engine.llm import LLM

    llm = LLM(
        directory,
        dtype=plan.dtype,
        device="cpu",
        load_format=contender.load_format,
        cpu_arithmetic=contender.arithmetic,
        speculative_config=plan.speculative if contender.speculates else None,
    )
    form = forms_of(contender.name, llm.engine.target)
    found = []
    for name, every in prompts.items():
        for batch in plan.batches:
            groups = groups_of(every, batch)

            def say(what: str, cell: str = f"{contender.name}, {name}, batch {batch}") -> None:
                tick(f"{cell}: {what}")

            say("warming up")
            by_steps = _watch_layer_steps(llm, groups[0], plan.max_tokens) if form.layers_in_one_call else None
            found.append(profile_of(name, batch, contender, _watch(llm, groups, plan, say), by_steps))
    return form, found


def _watch(llm: LLM, groups: list[list[list[int]]], plan: BenchPlan, say: Callable[[str], None]) -> Steps:
    _generate(llm, groups[0], min(WARM_UP_TOKENS, plan.max_tokens))  # kernels are compiled for the shapes they meet
    with watched(llm.engine) as watch:
        for number in range(plan.rounds):
            for group in groups:
                say(f"round {number + 1} of {plan.rounds}")
                _generate(llm, group, plan.max_tokens)
    return watch


def _watch_layer_steps(llm: LLM, group: list[list[int]], max_tokens: int) -> Steps:
    """Time one group with its layers run step by step, since the inside of one call cannot be timed."""
    with layers_step_by_step(llm.engine.target):
        _generate(llm, group, min(WARM_UP_TOKENS, max_tokens))
        with watched(llm.engine) as watch:
            _generate(llm, group, max_tokens)
    return watch


def _generate(llm: LLM, group: list[list[int]], max_tokens: int) -> None:
    from augury.config.sampling import SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    llm.reset_prefix_cache()
    llm.generate([{"prompt_token_ids": ids} for ids in group], params, use_tqdm=False)
