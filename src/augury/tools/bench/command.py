"""`augury bench`: Augury and its peers on the same weights and prompts, in one run."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from augury.config.errors import ConfigError
from augury.config.resolve import resolve
from augury.config.runnable import check_runnable
from augury.config.surfaces import from_json
from augury.tools.bench.contenders import ARITHMETICS, AUGURY, Contender, Setup, choose
from augury.tools.bench.plan import BenchPlan, conditions_of, find_weights, is_packed, tokenize
from augury.tools.shared.group import Commands, later, panels
from augury.tools.shared.loading import with_installed
from augury.tools.shared.progress import progress

SPECULATIVE = '{"method": "ngram", "num_speculative_tokens": 8, "prompt_lookup_min": 2, "prompt_lookup_max": 4}'

DTYPES = ("float32", "bfloat16")


def bench(
    model: Annotated[str, typer.Option(help="'default', a directory, a .gguf file or a Hugging Face id.")] = "default",
    peers: Annotated[str, typer.Option(help="Contenders, comma-separated; empty: all that are installed.")] = "",
    batch: Annotated[str, typer.Option(help="Batch sizes, comma-separated.")] = "1,8",
    prompts: Annotated[str, typer.Option(help="Prompt sets, comma-separated: chat, edit, or files.")] = "chat,edit",
    max_tokens: Annotated[int, typer.Option(min=1, help="New tokens for each prompt.")] = 64,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of measurement.")] = 3,
    threads: Annotated[int, typer.Option(min=1, help="Threads for each contender.")] = 2,
    dtype: Annotated[str, typer.Option(help="Arithmetic of Augury and transformers.")] = "float32",
    speculative_config: Annotated[
        list[str] | None,
        typer.Option(
            "--speculative-config",
            "-sc",
            help="Speculation of augury-<method>, as JSON; may be repeated. If left out: n-grams, 8 tokens at most.",
        ),
    ] = None,
    tensor_parallel_size: Annotated[
        int, typer.Option("--tensor-parallel-size", "-tp", min=1, help="Processes that divide Augury's model.")
    ] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Write a picture (PNG) here.")] = None,
    profile: Annotated[
        bool, typer.Option("--profile", help="Instead, show which kernels run here and where a step's time goes.")
    ] = False,
    cpu_arithmetic: Annotated[
        str, typer.Option(help="With --profile: exact (if left out), fast, or both with a comma; for packed weights.")
    ] = "",
    methods: Annotated[
        str,
        typer.Option(
            help="Instead, compare speculation methods: 'all' or names, comma-separated; missing heads are trained."
        ),
    ] = "",
    retrain: Annotated[bool, typer.Option("--retrain", help="With --methods: train the gate heads anew.")] = False,
    cost_curve: Annotated[
        str,
        typer.Option(metavar="FILE", help="Instead, measure what steps cost, for `augury advise`; '-' writes no file."),
    ] = "",
) -> None:
    """Measure tokens per second against transformers and llama.cpp in alternating rounds, with medians and spread."""
    plan = BenchPlan(
        model,
        _words(peers),
        _sizes(batch),
        _words(prompts),
        max_tokens,
        rounds,
        threads,
        dtype,
        [_speculation(text, model) for text in speculative_config or [SPECULATIVE]],
        tensor_parallel_size,
    )
    if tensor_parallel_size > 1 and (methods or profile or cost_curve):
        raise ConfigError("--tensor-parallel-size works only in the comparison of contenders; leave it out.")
    if dtype not in DTYPES:
        raise ConfigError(f"--dtype {dtype}: use {' or '.join(DTYPES)}.")
    if plot is not None and not plot.parent.is_dir():
        raise ConfigError(f"--plot {plot}: there is no directory {plot.parent}.")
    arithmetics = _check_profile(profile, cpu_arithmetic, {"--plot": plot, "--peers": peers})
    _check_methods(methods, retrain, {"--profile": profile, "--peers": peers, "-sc": speculative_config})
    if len(plan.configs) > 1 and (methods or profile or cost_curve):
        raise ConfigError("-sc may be repeated only in the comparison of contenders; give it once.")
    if cost_curve:
        _check_curve(cost_curve, {"--methods": methods, "--profile": profile, "--peers": peers})
        from augury.tools.bench.cost_curve import run_cost_curve

        run_cost_curve(plan, None if cost_curve == "-" else Path(cost_curve), as_json, plot)
    elif methods:
        from augury.tools.bench.methods import run_methods

        run_methods(plan, _words(methods), retrain, as_json, plot)
    elif profile:
        from augury.tools.bench.profile import run_profile

        run_profile(plan, as_json, arithmetics)
    else:
        run_bench(plan, as_json, plot)


def run_bench(plan: BenchPlan, as_json: bool = False, plot: Path | None = None) -> dict[str, Any]:
    """Run the plan, print table or JSON, draw the plot, and return the report."""
    from augury.tools.bench.figures import agreements_of, disturbance, lines_of
    from augury.tools.bench.plots import plot_bench
    from augury.tools.bench.screen import as_report, conditions_line, show
    from augury.tools.shared.terminal import output_console, print_json

    directory, gguf = find_weights(plan.model, as_json)
    contenders, left_out = choose(plan.peers, plan.configs, gguf, is_packed(directory, plan.dtype))
    if max(plan.batches) == 1:
        contenders = [c for c in contenders if c.name != "transformers-batch"]
    record, counts = measure(plan, contenders, directory, gguf)
    lines, agreements = lines_of(record, contenders), agreements_of(record, contenders)
    conditions = conditions_of(plan, counts, gguf)
    conditions["disturbance"] = disturbance(record, os.cpu_count() or 1)
    report = as_report(conditions, lines, agreements, left_out, record.broken)
    if as_json:
        print_json(report)
    else:
        show(output_console(), report, lines, agreements)
    if plot is not None and lines:
        plot_bench(lines, conditions_line(conditions), plot)
    return report


def measure(plan: BenchPlan, contenders: list[Contender], directory: str, gguf: str | None) -> Any:
    """Start the workers, run all rounds, end the workers; returns the record and the number of prompts by set."""
    from augury.tools.bench.rounds import Bench, Measurements
    from augury.tools.bench.worker import ContenderProcess, PeerError

    prompts = tokenize(plan.prompts, directory)
    longest = max(len(ids) for every in prompts.values() for ids in every) + plan.max_tokens
    room = longest + max(config["num_speculative_tokens"] for config in plan.configs) + 8
    workers: list[ContenderProcess] = []
    record = Measurements()
    try:
        for contender in contenders:
            ranks = plan.ranks if contender.make == AUGURY.make else 1
            threads = max(1, plan.threads // ranks)
            config = contender.speculative or plan.speculative  # the peers' own look-ups use the first
            setup = Setup(contender, directory, gguf, plan.dtype, threads, room, config, ranks)
            workers.append(ContenderProcess(setup))
        with progress("loading", len(workers)) as tick:
            for worker in list(workers):
                tick(f"loading {worker.contender.name}")
                try:
                    worker.ready()
                except PeerError as error:
                    record.broken[worker.contender.name] = str(error)
        alive = [worker for worker in workers if worker.contender.name not in record.broken]
        running = Bench(alive, prompts, plan.batches, plan.max_tokens, lambda _: None, record)
        with progress("warming up", running.size(plan.rounds)) as tick:
            running.tick, running.forecast = tick, lambda line: print(line, file=sys.stderr, flush=True)
            running.run(plan.rounds)
    finally:  # also on Ctrl-C
        for worker in workers:
            worker.close()
    return record, {name: len(every) for name, every in prompts.items()}


def _check_profile(profile: bool, cpu_arithmetic: str, others: dict[str, Any]) -> tuple[str, ...]:
    """The arithmetics to profile; empty: those of the contenders."""
    names = tuple(_words(cpu_arithmetic))
    if names and not profile:
        raise ConfigError("--cpu-arithmetic belongs to --profile; otherwise --peers augury,augury-fast names both.")
    if wrong := [name for name in names if name not in ARITHMETICS]:
        raise ConfigError(f"--cpu-arithmetic {wrong[0]}: use {' or '.join(ARITHMETICS)}, or both with a comma.")
    if names and others["--peers"]:
        raise ConfigError(
            "--cpu-arithmetic and --peers cannot go together: peer names already imply the arithmetic; leave one out."
        )
    if profile and others["--plot"]:
        raise ConfigError("--plot and --profile cannot go together; leave one out.")
    return names


def _check_methods(methods: str, retrain: bool, others: dict[str, Any]) -> None:
    """`--methods` is a bench of its own: options of the other ones are refused, not ignored."""
    if retrain and not methods:
        raise ConfigError("--retrain belongs to --methods; add it, or leave --retrain out.")
    for name in [name for name, given in others.items() if methods and given]:
        raise ConfigError(f"{name} and --methods cannot go together; leave one out.")


def _check_curve(file: str, others: dict[str, Any]) -> None:
    """`--cost-curve` is a bench of its own, too."""
    for name in [name for name, given in others.items() if given]:
        raise ConfigError(f"{name} and --cost-curve cannot go together; leave one out.")
    if file != "-" and not Path(file).parent.is_dir():
        raise ConfigError(f"--cost-curve {file}: there is no directory {Path(file).parent}.")


def _words(text: str) -> list[str]:
    return list(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))


def _sizes(text: str) -> list[int]:
    sizes = _words(text)
    if not sizes or not all(size.isdigit() and int(size) > 0 for size in sizes):
        raise ConfigError(f"--batch {text}: write batch sizes with commas, for example 1,8.")
    return [int(size) for size in sizes]


def _speculation(text: str, model: str) -> dict[str, Any]:
    parsed = resolve(with_installed(from_json(text), model))
    assert parsed is not None
    check_runnable(parsed)
    return parsed.to_dict()


class BenchCommands(Commands):
    """Runs the bench of engines unless a subcommand is named, which has options of its own."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the subcommand, and keep the bench of engines from running as well."""
        found = super().resolve_command(ctx, args)
        given = [name for name in ctx.params if "COMMANDLINE" in str(ctx.get_parameter_source(name))]
        if given:
            option = "--json" if given[0] == "as_json" else "--" + given[0].replace("_", "-")
            raise ConfigError(f"{option} comes before {found[0]!r}; the options of {found[0]!r} go after it.")
        self.callback = None
        return found


bench_app = typer.Typer(cls=BenchCommands, add_completion=False, rich_markup_mode=panels())
bench_app.callback(invoke_without_command=True)(bench)
later(
    bench_app,
    "serve",
    "augury.tools.load.command:bench_serve",
    "Load a running OpenAI server, ours or vLLM's, at several concurrencies, and compare two of them.",
)
later(
    bench_app,
    "gpu",
    "augury.tools.bench.gpu.command:bench_gpu",
    "Measure the engine alone on random weights with a given acceptance: step by step, beside vLLM's figures.",
)
