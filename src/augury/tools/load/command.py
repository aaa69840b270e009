"""`augury bench serve`: a concurrency sweep on any OpenAI-compatible server, with the keys of `vllm bench serve`."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from augury.config.errors import ConfigError
from augury.tools.load.compare import SavedRun, as_records, compare, drawable, read_results, verdict
from augury.tools.load.dataset import fingerprint, fitted, load, marked
from augury.tools.load.load import ArrivalPattern
from augury.tools.load.results import as_result, brief
from augury.tools.load.screen import conditions_line, show, show_comparison
from augury.tools.load.sweep import BenchServer, Sweep, SweepPlan, run
from augury.tools.shared.endpoint import Endpoint
from augury.tools.shared.progress import progress
from augury.tools.shared.terminal import output_console, print_json

INTERRUPTED = 130
NEW, OLD = "new", "baseline"


def bench_serve(
    url: Annotated[str, typer.Argument(metavar="URL", help="An OpenAI server, for example http://localhost:8000.")],
    model: Annotated[
        str | None, typer.Option(help="The model's name on the server; default: the first it lists.")
    ] = None,
    dataset: Annotated[
        str, typer.Option(metavar="FILE|chat|edit", help="Prompts: ours, or JSONL, ShareGPT, a trace, lines of text.")
    ] = "chat",
    concurrency: Annotated[str, typer.Option(help="Concurrent streams, comma-separated.")] = "1,4,8,16",
    num_prompts: Annotated[
        int | None,
        typer.Option(min=1, help="Requests at each concurrency; default: four per stream, twelve with a baseline."),
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="New tokens for each request.")] = 128,
    request_rate: Annotated[
        str, typer.Option(metavar="inf|R", help="Requests per second; inf: whenever a stream is free.")
    ] = "inf",
    burstiness: Annotated[float, typer.Option(help="With a rate. 1: Poisson; below: bursts; above: evenly.")] = 1.0,
    temperature: Annotated[float, typer.Option(min=0, help="0 takes the likeliest token.")] = 0.0,
    seed: Annotated[
        int | None, typer.Option(help="Seed of the first request, counting up from there, and of the arrivals.")
    ] = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="All answers have --max-tokens tokens.")] = False,
    extra_body: Annotated[str | None, typer.Option(metavar="JSON", help="Fields for every request.")] = None,
    reuse_prompts: Annotated[
        bool,
        typer.Option(
            "--reuse-prompts",
            help="Send prompts unchanged; without it, each gets its own first line, so that no prefix is cached.",
        ),
    ] = False,
    endpoint: Annotated[Literal["chat", "completions"], typer.Option(help="The route.")] = "chat",
    baseline_url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="A second server to compare with; the two take turns, round by round."),
    ] = None,
    baseline_model: Annotated[
        str | None, typer.Option(help="The model's name on the baseline server, if it differs.")
    ] = None,
    baseline_extra_body: Annotated[
        str | None, typer.Option(metavar="JSON", help="Fields for the baseline instead of --extra-body's.")
    ] = None,
    compare_with: Annotated[
        Path | None, typer.Option("--compare", metavar="FILE", help="Saved results to compare with.")
    ] = None,
    save: Annotated[Path | None, typer.Option(metavar="FILE", help="Write everything here, as JSON.")] = None,
    plot: Annotated[Path | None, typer.Option(metavar="PNG", help="Write a picture here.")] = None,
    api_key: Annotated[str | None, typer.Option(envvar="AUGURY_API_KEY", help="Key for the servers.")] = None,
    timeout: Annotated[float, typer.Option(min=0.001, help="Seconds to wait for the end of an answer.")] = 600.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Load a server. Exit code: 0 measured, 1 nothing succeeded at some concurrency, 2 could not run, 130 stopped."""
    if compare_with is not None and baseline_url is not None:
        raise ConfigError("--compare and --baseline-url name two baselines; keep one.")
    if baseline_url is None and (baseline_model or baseline_extra_body):
        raise ConfigError("--baseline-model and --baseline-extra-body belong to --baseline-url.")
    before = read_results(compare_with) if compare_with is not None else None
    _check_places(save, plot)
    options = {"max_tokens": max_tokens, "temperature": temperature} | ({"ignore_eos": True} if ignore_eos else {})
    levels, traffic = _numbers(concurrency), ArrivalPattern(_rate(request_rate), _positive(burstiness), seed or 0)
    chat, turns = endpoint == "chat", baseline_url is not None
    plan = SweepPlan([], levels, num_prompts or 0, chat, options, seed, traffic, timeout, turns, reuse_prompts)
    plan.prompts.extend(fitted(prompt, chat) for prompt in load(dataset, max(map(plan.count, levels))))
    servers = [_server(NEW, "URL", url, model, api_key, _object("--extra-body", extra_body))]
    if baseline_url is not None:
        fields = (
            _object("--extra-body", extra_body)
            if baseline_extra_body is None
            else _object("--baseline-extra-body", baseline_extra_body)
        )
        other = _server(OLD, "--baseline-url", baseline_url, baseline_model or model, api_key, fields)
        servers.append(replace(other, again=other.base == servers[0].base))
    with progress("warming up", sum(map(plan.count, levels)) * len(servers)) as tick:
        sweep = run(plan, servers, tick)
    results = _results(sweep, servers, plan)
    conditions = _conditions(plan, servers, dataset) | {"interrupted": sweep.interrupted}
    _give(results, conditions, before, save, plot, as_json)
    raise typer.Exit(_exit_code(sweep.interrupted, results))


def _server(name: str, flag: str, url: str, model: str | None, key: str | None, extra: dict[str, Any]) -> BenchServer:
    there = Endpoint(flag, url if "://" in url else f"http://{url}", key, model)
    return BenchServer(name, there.base, there.model, there.authorization, extra)


def _results(sweep: Sweep, servers: list[BenchServer], plan: SweepPlan) -> dict[str, list[dict[str, Any]]]:
    backend = "openai-chat" if plan.chat else "openai"
    found: dict[str, list[dict[str, Any]]] = {}
    for server in servers:
        told = {
            "endpoint_type": backend,
            "backend": backend,
            "label": server.name,
            "model_id": server.model,
            "tokenizer_id": None,
            "request_rate": "inf" if plan.traffic.rate == float("inf") else plan.traffic.rate,
            "burstiness": plan.traffic.burstiness,
            "dataset_sha256": fingerprint(plan.prompts),
        }
        found[server.name] = [
            as_result(level, told | {"num_prompts": plan.count(level.concurrency)})
            for level in sweep.levels[server.name]
        ]
    return found


def _conditions(plan: SweepPlan, servers: list[BenchServer], dataset: str) -> dict[str, Any]:
    """The conditions under which the figures were measured."""
    return {
        "urls": {server.name: server.base for server in servers},
        "model": servers[0].model,
        "dataset": Path(dataset).name,
        "prompts": len(plan.prompts),
        **{name: plan.options.get(name, False) for name in ("max_tokens", "temperature", "ignore_eos")},
        "seed": plan.seed,
        "extra_body": {server.name: server.extra for server in servers if server.extra},
        "endpoint": plan.path,
        "prompts_reused": plan.reuse or any(marked(one, "") == one for one in plan.prompts),
        "request_rate": "inf" if plan.traffic.rate == float("inf") else plan.traffic.rate,
        "burstiness": plan.traffic.burstiness,
        "warm_up": "one short request per stream at each concurrency, not counted",
    }


def _give(
    results: dict[str, list[dict[str, Any]]],
    conditions: dict[str, Any],
    before: SavedRun | None,
    save: Path | None,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Print, save and plot the results."""
    old = results.get(OLD, before.results if before else None)
    found = compare(results[NEW], old) if old is not None else None
    told = {"verdict": verdict(found), "comparison": as_records(found)} if found is not None else {}
    whole: dict[str, Any] = {"conditions": conditions, **told, "results": results[NEW]}
    if OLD in results:
        whole["baseline_results"] = results[OLD]
    if before is not None:
        whole["differences"] = before.differences(conditions)
    if save is not None:
        save.write_text(json.dumps(whole) + "\n", encoding="utf-8")
    if as_json:
        lists = ("results", "baseline_results")
        print_json(whole | {name: list(map(brief, whole[name])) for name in lists if name in whole})
    else:
        console = output_console()
        show(console, conditions, results)
        if found is not None:
            show_comparison(console, found, NEW, before.name if before else OLD, whole.get("differences"))
    lines = {name: drawable(levels) for name, levels in results.items()}
    if plot is not None and any(lines.values()):
        from augury.tools.load.plot import plot as draw

        lines |= {before.name: drawable(before.results)} if before else {}
        draw({name: levels for name, levels in lines.items() if levels}, conditions_line(conditions), plot)
        print(f"wrote {plot}", file=sys.stderr)
    if save is not None:
        print(f"wrote {save}", file=sys.stderr)


def _exit_code(interrupted: bool, results: dict[str, list[dict[str, Any]]]) -> int:
    if interrupted:
        return INTERRUPTED
    every = [level for levels in results.values() for level in levels]
    return 0 if every and all(level["completed"] for level in every) else 1


def _check_places(save: Path | None, plot: Path | None) -> None:
    """Refuse output paths that cannot be written before measuring for an hour, not after it."""
    for option, path in {"--save": save, "--plot": plot}.items():
        if path is not None and (path.is_dir() or not path.parent.is_dir()):
            raise ConfigError(f"{option} {path}: {'a directory' if path.is_dir() else f'no directory {path.parent}'}.")
    if plot is not None:
        import matplotlib  # noqa: F401  # fails now if it is missing


def _object(option: str, text: str | None) -> dict[str, Any]:
    try:
        value = json.loads(text) if text else {}
    except ValueError as error:
        raise ConfigError(f"{option}: not JSON ({error}).") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{option}: write a JSON object, for example '{{\"top_p\": 0.9}}'.")
    return value


def _numbers(text: str) -> list[int]:
    words = list(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    if not words or not all(word.isdecimal() and 0 < int(word) <= 10_000 for word in words):
        raise ConfigError(f"--concurrency {text}: write numbers of streams with commas, for example 1,8,64.")
    return [int(word) for word in words]


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not rate > 0:
        raise ConfigError(f"--request-rate {text}: requests a second, or inf.")
    return rate


def _positive(value: float) -> float:
    if not 0 < value < float("inf"):
        raise ConfigError(f"--burstiness {value:g}: a number above 0.")
    return value
