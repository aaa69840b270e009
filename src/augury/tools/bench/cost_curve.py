"""`augury bench --cost-curve`: what a step takes on this machine, against requests, rows and context.

The engine decodes as it always does; only its drafter is replaced with one that drafts as many tokens as it is set to,
so that every step has a known number of rows. Row counts alternate step by step within the same requests: whatever else
the machine does affects all of them alike. Drafting is timed separately, with the actual methods.
"""

from __future__ import annotations

import math
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any

from augury.config.errors import ConfigError
from augury.config.facts import read_facts
from augury.tools.advise.curve import FORMAT, CostCurve, check_curve
from augury.tools.bench.plan import limit_threads
from augury.tools.bench.worker import machine_seconds

if TYPE_CHECKING:
    from augury.engine.llm import LLM
    from augury.tools.bench.plan import BenchPlan

ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24)  # rows per request: the sizes that passes are padded to
CONTEXTS = (64, 512)
CYCLES = 8  # times every row count is run in a round
WARM_UP = 1  # cycles of a round that are discarded: kernels are compiled for the shapes they meet
MODEL_FREE = (
    {"method": "ngram", "num_speculative_tokens": 8, "prompt_lookup_min": 2, "prompt_lookup_max": 4},
    {"method": "suffix", "num_speculative_tokens": 16, "suffix_decoding_max_cached_requests": 0},
)
Times = dict[tuple[int, int], list[dict[int, float]]]  # by context and requests: for each cycle, milliseconds by rows


def run_cost_curve(plan: BenchPlan, file: Path | None, as_json: bool = False, plot: Path | None = None) -> CostCurve:
    """Measure, check, store, print."""
    from augury.tools.bench.cost_curve_screen import conditions_line, show, store
    from augury.tools.bench.plan import find_weights, tokenize
    from augury.tools.bench.plots import plot_curve
    from augury.tools.shared.progress import progress
    from augury.tools.shared.terminal import output_console, print_json

    limit_threads(plan.threads)  # before torch loads
    directory, _ = find_weights(plan.model, as_json)
    texts = [ids for every in tokenize(plan.prompts, directory).values() for ids in every]
    methods = list({str(c["method"]): c for c in (*MODEL_FREE, plan.speculative)}.values())
    before = machine_seconds(), time.process_time(), time.perf_counter()
    with progress("loading", 1 + plan.rounds * len(CONTEXTS) * len(plan.batches) + len(methods)) as tick:
        times, reading = measure_steps(plan, directory, texts, tick)
        drafting = [point for config in methods for point in measure_drafting(plan, directory, config, texts, tick)]
    curve = check_curve(
        {
            "format": FORMAT,
            "model": _model(plan.model, directory),
            "conditions": conditions_of(plan, before),
            "buckets": buckets(max(plan.batches) * max(ROWS)),
            "steps": _steps_of(times),
            "reading": summary(reading),
            "drafting": drafting,
        },
        str(file or "the curve"),
    )
    if file is not None:
        store(curve, file)
    if as_json:
        print_json(curve.file.model_dump())
    else:
        show(output_console(), curve, file)
    if plot is not None:
        plot_curve(curve, conditions_line(curve), plot)
    return curve


def _steps_of(times: Times) -> list[dict[str, Any]]:
    return [
        {"context": c, "requests": r, "rows": n, **summary(every)}
        for (c, r), cycles in sorted(times.items())
        for n, every in steadied(cycles).items()
    ]


def measure_steps(
    plan: BenchPlan, directory: str, texts: list[list[int]], tick: Callable[[str], None]
) -> tuple[Times, list[float]]:
    """Step times of every size, and prefill times in milliseconds per prompt token."""
    from augury.engine.llm import LLM
    from augury.tools.bench.rows_drafter import RowsDrafter

    tick("loading")
    most, largest = max(ROWS) - 1, max(plan.batches) * max(ROWS)
    cycles = WARM_UP + CYCLES
    need = max(CONTEXTS) + (cycles + 4) * len(ROWS) + most + 8
    llm = LLM(
        directory,
        dtype=plan.dtype,
        max_num_seqs=max(plan.batches),
        max_num_batched_tokens=max(256, largest),
        enable_prefix_caching=False,
        speculative_config={**MODEL_FREE[0], "num_speculative_tokens": most},
    )
    if (llm.config.max_model_len or 0) < need:
        raise ConfigError(f"--model {plan.model}: a curve needs {need} tokens of context; the model has fewer.")
    drafter = RowsDrafter(most, llm.engine.target.vocab_size - 1)
    llm.engine.runner.drafter = drafter
    times: Times = defaultdict(list)
    reading: list[float] = []
    for number in range(plan.rounds):
        for context in CONTEXTS:
            for requests in plan.batches:
                tick(f"round {number + 1}: steps of {requests} requests at a context of {context} tokens")
                times[context, requests] += _run(llm, drafter, context, requests, cycles, texts, reading)
    return times, reading


def _run(
    llm: LLM, drafter: Any, context: int, requests: int, cycles: int, texts: list[list[int]], reading: list[float]
) -> list[dict[int, float]]:
    """Time one number of requests at one context: every cycle runs each row count once, in a rotated order."""
    engine = llm.engine
    running = list(_requests(llm, context, requests, cycles * len(ROWS) * 2, texts))
    for request in running:
        engine.add(request)
    drafter.tokens = 0
    while any(request.pending > 1 or request.length == request.prompt_len for request in running):
        engine.step()
        if engine.last.prompt_rows >= min(context, 32):
            reading.append(1e3 * engine.last.seconds / engine.last.rows)
    found: list[dict[int, float]] = []
    for cycle in range(cycles):
        turn = cycle % len(ROWS)
        order = (*ROWS[turn:], *ROWS[:turn])
        drafter.tokens = order[0] - 1
        engine.step()  # its rows belong to the previous cycle; its drafts are this one's first
        taken = {}
        for rows in (*order[1:], 1):
            drafter.tokens = rows - 1
            ms, ran = _step(engine)
            taken[ran // requests] = ms
        if cycle >= WARM_UP and set(taken) == set(ROWS):  # a draft that was cut short, or accepted, spoils its cycle
            found.append(taken)
    for request in running:
        engine.abort(request)
    return found


def steadied(cycles: list[dict[int, float]]) -> dict[int, list[float]]:
    """Milliseconds by rows, with the machine's drift in speed removed.

    All rows of a cycle run within moments of each other: a cycle that took twice as long throughout shows a slow
    machine, not slow steps. So each cycle is scaled to the median one by its median deviation over the rows (a median
    polish of the logarithms).
    """
    rows = sorted(cycles[0])
    logs = [[math.log(cycle[n]) for n in rows] for cycle in cycles]
    middle = [median(column) for column in zip(*logs, strict=True)]
    moods = [median(here - there for here, there in zip(line, middle, strict=True)) for line in logs]
    usual = median(moods)
    return {
        n: [math.exp(line[i] - mood + usual) for line, mood in zip(logs, moods, strict=True)]
        for i, n in enumerate(rows)
    }


def _step(engine: Any) -> tuple[float, int]:
    """Milliseconds of a step without its drafting, and its rows."""
    engine.step()
    last = engine.last
    return 1e3 * (last.seconds - (last.drafter_seconds or 0.0)), last.rows


def _requests(llm: LLM, context: int, count: int, tokens: int, texts: list[list[int]]) -> Iterator[Any]:
    """Requests with prompts of one length, assembled from the texts, each starting with a different one."""
    from augury.config.sampling import SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False)
    for i in range(count):
        ids = [token for text in texts[i % len(texts) :] + texts for token in text]
        ids *= -(-context // len(ids))
        yield from llm.intake.requests(f"curve-{i}", ids[:context], params)


def measure_drafting(
    plan: BenchPlan, directory: str, config: dict[str, Any], texts: list[list[int]], tick: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Drafting times of a method in ordinary decode steps, by number of requests."""
    from augury.config.sampling import SamplingParams
    from augury.engine.llm import LLM

    tick(f"drafting by {config['method']}")
    llm = LLM(directory, dtype=plan.dtype, speculative_config=config, enable_prefix_caching=False)
    params = SamplingParams(temperature=0.0, max_tokens=min(plan.max_tokens, 48), ignore_eos=True, detokenize=False)
    points = []
    for requests in plan.batches:
        taken: list[float] = []
        for _ in range(plan.rounds):
            for i in range(requests):
                for request in llm.intake.requests(f"draft-{i}", texts[i % len(texts)], params):
                    llm.engine.add(request)
            while llm.engine.busy:
                llm.engine.step()
                last = llm.engine.last
                if last.prompt_rows == 0 and last.requests == requests and last.drafter_seconds is not None:
                    taken.append(1e3 * last.drafter_seconds)
        if len(taken) > 1:  # on a GPU drafting is not timed separately
            tokens = llm.config.speculative_config.num_speculative_tokens  # type: ignore[union-attr]
            points.append({"method": config["method"], "tokens": tokens, "requests": requests, **summary(taken)})
    return points


def summary(times: list[float]) -> dict[str, Any]:
    """Median and quartiles in milliseconds, and the number of times."""
    low, middle, high = quantiles(times, n=4, method="inclusive") if len(times) > 1 else times * 3
    return {"ms": round(middle, 5), "low": round(low, 5), "high": round(high, 5), "count": len(times)}


def buckets(most: int) -> list[int]:
    """The row counts that passes are padded to, up to the largest measured."""
    from augury.engine.rows import round_up

    return sorted({round_up(rows) for rows in range(1, most + 1)})


def conditions_of(plan: BenchPlan, before: tuple[float, float, float]) -> dict[str, Any]:
    """What the curve depends on, and the share of the machine that other processes took meanwhile."""
    from augury.observe.machine import cpu_name, how_threads_wait
    from augury.tools.bench.screen import versions

    all_of_it, mine, seconds = (
        machine_seconds() - before[0],
        time.process_time() - before[1],
        time.perf_counter() - before[2],
    )
    return {
        "cpu": cpu_name(),
        "threads": plan.threads,
        "versions": versions(),
        "model": plan.model,
        "dtype": plan.dtype,
        "prompts": plan.prompts,
        "rounds": plan.rounds,
        "cycles": CYCLES * plan.rounds,
        "temperature": 0.0,
        "openmp_wait_policy": how_threads_wait(),
        "disturbance": round(max(0.0, all_of_it - mine) / (seconds * (os.cpu_count() or 1)), 3),  # others' share
        "taken": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
    }


def _model(name: str, directory: str) -> dict[str, Any]:
    facts = read_facts(directory)
    if facts is None:
        return {"name": name}
    return {"name": name, "layers": facts.layers, "hidden": facts.hidden_size, "vocab": facts.vocab_size}
