"""`augury advise`: whether speculation will pay for a target, its traffic and its hardware, and how to set it up."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from augury.config.errors import ConfigError

if TYPE_CHECKING:
    from augury.config.facts import ModelFacts
    from augury.tools.advise.advice import Advice
    from augury.tools.advise.cost import Cost
    from augury.tools.advise.shape import ModelShape
    from augury.tools.advise.traffic import Recorded
    from augury.tools.live.reading import Reading

MOST_REQUESTS = 4096
USUAL_LOADS = "1,8,32,64,128"


def advise(
    target: Annotated[str, typer.Option(help="A directory, a config.json, 'default', or a name such as llama-3.1-8b.")],
    trace: Annotated[
        list[Path] | None, typer.Option(help="Recorded conversations, in any form that `augury replay` reads.")
    ] = None,
    url: Annotated[str | None, typer.Option(help="A server to take lengths and load from, by its /metrics.")] = None,
    check: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Like --url, and compare the prediction with what the server chooses and measures."
        ),
    ] = None,
    method: Annotated[
        str | None, typer.Option(help="The method of the server of --url or --check; vLLM's metrics do not name it.")
    ] = None,
    gpu: Annotated[str | None, typer.Option(help="Costs by a roofline of this GPU, such as H200.")] = None,
    tp: Annotated[int, typer.Option("--tp", min=1, help="GPUs the target is split over.")] = 1,
    cost_curve: Annotated[
        Path | None, typer.Option(help="Costs as `augury bench --cost-curve FILE` measured them.")
    ] = None,
    profile: Annotated[
        list[Path] | None, typer.Option(help="A drafter's speculation_profile.json; may be repeated.")
    ] = None,
    drafter: Annotated[list[str] | None, typer.Option(help="A drafter's directory; may be repeated.")] = None,
    concurrency: Annotated[
        str | None,
        typer.Option(
            help="Concurrent requests, comma-separated; default 1,8,32,64,128, or with --url what runs there now."
        ),
    ] = None,
    max_memory: Annotated[float | None, typer.Option(min=0, help="Maximum GB of memory for a drafter.")] = None,
    vllm_version: Annotated[str | None, typer.Option(help="Advise for this vLLM release; default: the newest.")] = None,
    tokenizer: Annotated[str, typer.Option(help="For --trace; the target's if it has one.")] = "",
    limit: Annotated[int | None, typer.Option(min=1, help="Stop after this many conversations.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
    form: Annotated[
        Literal["text", "json", "aiconfigurator", "dynamo"],
        typer.Option("--format", help="What is printed; the last two: a file for that planner, in YAML."),
    ] = "text",
    out: Annotated[Path | None, typer.Option(help="Write the recommended -sc JSON here.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Write a picture (PNG) here.")] = None,
) -> None:
    """Predict which method pays off, with which K, by how much and how certainly, before you deploy."""
    from augury.config.versions import NEWEST, version
    from augury.tools.advise.advice import advise as weigh
    from augury.tools.advise.candidates import AdviceInputs
    from augury.tools.advise.screen import show
    from augury.tools.advise.traffic import Traffic
    from augury.tools.doctor.examine import check_release
    from augury.tools.shared.profile import read_profile
    from augury.tools.shared.terminal import output_console, print_json

    release = version(NEWEST if vllm_version is None else check_release(vllm_version))
    for option, file in (("--out", out), ("--plot", plot)):
        if file is not None and not file.parent.is_dir():
            raise ConfigError(f"{option} {file}: there is no directory {file.parent}.")
    loads = _loads(concurrency or USUAL_LOADS)
    facts, shape = target_of(target, as_json or form != "text", cost_curve is not None)
    cost = cost_of(gpu, tp, cost_curve, shape, facts)
    recorded = _recorded(trace or [], tokenizer, facts, limit)
    traffic = recorded.traffic() if recorded else Traffic()
    profiles: list[Mapping[str, Any]] = [read_profile(path) for path in profile or ()]
    asked = _server(check, url, method)
    if asked is not None:
        from augury.tools.advise.served import loads_of, served

        traffic, seen, reading = served(asked, traffic, method)
        loads = loads_of(traffic) or loads if concurrency is None else loads
        profiles += [seen] if seen else []
    drafters, memory = [_drafter(name) for name in drafter or ()], None if max_memory is None else max_memory * 1e9
    given = recorded, profiles, drafters, release, loads, memory, vllm_version is not None
    advice = weigh(AdviceInputs(facts, shape, cost, traffic, *given))
    if check is not None:
        say_beside(advice, reading, as_json or form == "json")
        return
    if form in ("aiconfigurator", "dynamo"):
        from augury.tools.advise.planner_files import planner_file

        print(planner_file(advice, form, target), end="")
    elif as_json or form == "json":
        print_json(advice.as_record())
    else:
        show(output_console(), advice)
    if out is not None:
        _write(out, advice.recommended.config if advice.recommended else None)
    if plot is not None:
        from augury.tools.advise.picture import draw

        draw(advice, plot)
        print(f"wrote {plot}", file=sys.stderr)


def say_beside(advice: Advice, reading: Reading, as_json: bool) -> None:
    """Print the comparison of `--check`, as a table or as JSON."""
    from augury.tools.advise.beside import lay_beside, show_beside
    from augury.tools.shared.terminal import output_console, print_json

    found = lay_beside(advice, reading)
    if as_json:
        print_json(found.as_record())
    else:
        show_beside(output_console(), found)


def _server(check: str | None, url: str | None, method: str | None) -> str | None:
    """The address of the server to ask, if one is named."""
    if check is not None and url is not None:
        raise ConfigError("--check URL and --url URL name one server: give one of them.")
    if method is not None and not (check or url):
        raise ConfigError("--method is for a server: give its address with --url or --check.")
    return check or url


def _loads(text: str) -> tuple[int, ...]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words or not all(word.isdigit() and 0 < int(word) <= MOST_REQUESTS for word in words):
        raise ConfigError(
            f"--concurrency {text}: write whole numbers up to {MOST_REQUESTS} with commas, such as 1,8,32."
        )
    return tuple(sorted({int(word) for word in words}))


def target_of(name: str, quiet: bool, measured: bool) -> tuple[ModelFacts, ModelShape | None]:
    """Facts and shape; a cost curve (`measured`) needs no shape, so a config.json without one is no error then."""
    from augury.tools.advise.shape import shape_of
    from augury.tools.advise.target import find_target, why_not_decoding

    if name == "default":
        from augury.model.store import resolve

        facts = replace(find_target(str(resolve(name, quiet))), name=name)
    else:
        facts = find_target(name)
    try:
        return facts, shape_of(facts)
    except ConfigError:
        if measured or why_not_decoding(facts):
            return facts, None
        raise


def cost_of(gpu: str | None, tp: int, curve: Path | None, shape: ModelShape | None, facts: ModelFacts) -> Cost:
    from augury.tools.advise.curve import read_curve
    from augury.tools.advise.gpus import find_gpu
    from augury.tools.advise.roofline import Roofline
    from augury.tools.advise.target import check_parallel, no_shape

    if (gpu is None) == (curve is None):
        raise ConfigError("costs come from a GPU or from a curve: give --gpu NAME or --cost-curve FILE, one of them.")
    if curve is not None:
        found = read_curve(curve)
        told = found.file.model
        for name, value in (("layers", facts.layers), ("hidden", facts.hidden_size)):
            if value is not None and told.get(name) not in (None, value):
                raise ConfigError(
                    f"--cost-curve {curve}: measured on {told.get('name')}, whose {name} is {told[name]}; the target's "
                    f"is {value}."
                )
        return found
    check_parallel(facts, tp)
    return Roofline(shape or no_shape(facts), find_gpu(str(gpu)), tp)


def _recorded(traces: list[Path], tokenizer: str, facts: ModelFacts, limit: int | None) -> Recorded | None:
    if not traces:
        return None
    from augury.tools.advise.traffic import Recorded
    from augury.tools.replay.screen import progress, warn
    from augury.tools.replay.tokens import encoder
    from augury.tools.replay.traces import TraceReader

    own = facts.directory is not None and (facts.directory / "tokenizer.json").is_file()
    tokens = encoder(tokenizer or (str(facts.directory) if own else "default"))
    reader = TraceReader(traces, None, limit)
    with progress(reader):
        recorded = Recorded(reader, tokens, ", ".join(path.name for path in traces[:3]))
    warn(reader)
    return recorded


def _drafter(name: str) -> ModelFacts:
    from augury.config.facts import read_facts

    found = read_facts(name)
    if found is None:
        raise ConfigError(f"--drafter {name}: no directory with a config.json; name one.")
    return found


def _write(path: Path, config: dict[str, object] | None) -> None:
    """Write the recommended configuration atomically; null if there is none."""
    from augury.config.files import write_text

    try:
        write_text(path, json.dumps(config, indent=2) + "\n")
    except OSError as error:
        raise ConfigError(f"--out {path}: cannot be written ({error.strerror}).") from None
