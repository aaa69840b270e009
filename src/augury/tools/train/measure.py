"""`augury drafter measure`: a drafter's acceptance length on prompts, by K, tree, temperature and rule."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.table import Table

from augury.config import surfaces
from augury.config.engine import MOST_SEQS
from augury.config.errors import ConfigError
from augury.tools.shared.options import Json
from augury.tools.shared.terminal import output_console, print_json
from augury.tools.train.screen import said

RULES = ("coupled", "standard", "block")  # the lossless ones


def measure(
    speculative_config: Annotated[
        str, typer.Option("--speculative-config", "-sc", metavar="JSON", help="The drafter, as in vLLM.")
    ],
    prompts: Annotated[list[Path], typer.Option(help="Files of prompts (lines, JSON, JSONL, CSV); may be repeated.")],
    target: Annotated[str, typer.Option(help="The model it drafts for.")] = "default",
    k: Annotated[list[int] | None, typer.Option("--k", min=1, help="Drafted tokens; may be repeated.")] = None,
    tree: Annotated[
        list[int] | None, typer.Option(min=0, help="Nodes of a tree K deep; 0: a chain. May be repeated.")
    ] = None,
    top_k: Annotated[int, typer.Option(min=1, help="Maximum number of children of a node.")] = 4,
    temperature: Annotated[
        list[float] | None, typer.Option(min=0, help="Temperature of answers and drafts; 0: greedy. May be repeated.")
    ] = None,
    rule: Annotated[
        list[str] | None, typer.Option(help="How sampled chains are judged: coupled, standard, block.")
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="New tokens of each answer, at most.")] = 256,
    most: Annotated[int, typer.Option("--most", min=1, help="Prompts of each file, at most.")] = 80,
    batch: Annotated[
        int | None, typer.Option(min=1, max=MOST_SEQS, help="Answers at a time (8; 256 on a GPU).")
    ] = None,
    device: Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="Where to run.")] = "auto",
    dtype: str = "auto",
    as_json: Json = False,
) -> None:
    """Measure a drafter's acceptance length on prompts, served by the engine: chains and trees, greedy and sampled."""
    from augury.tools.train.measured import Amounts, MeasuredWith, measured

    spec = surfaces.gather(speculative_config)
    assert spec is not None
    for key in ("num_speculative_tokens", "tree", "rejection_sample_method"):
        if key in spec:
            raise ConfigError(f"-sc: {key!r} is what is measured here; give --k, --tree or --rule instead.")
    if unknown := [way for way in rule or () if way not in RULES]:
        raise ConfigError(f"--rule {unknown[0]}: unknown; there are {', '.join(RULES)}.")
    settings = [
        MeasuredWith(tokens, nodes, heat, way)
        for tokens in dict.fromkeys(k or [3])
        for nodes in dict.fromkeys(tree or [0])
        for heat in dict.fromkeys(temperature or [0.0])
        for way in dict.fromkeys(rule or ["coupled"])
    ]
    amounts = Amounts(max_tokens, most, batch, top_k)
    with said(quiet=as_json) as tell:
        result = measured(target, spec, prompts, settings, amounts, device, dtype, tell)
    if as_json:
        print_json(result)
        return
    names = [path.stem for path in prompts]
    table = Table("K", "tree", "temperature", "rule", *names, "mean", box=None)
    for line in result["lengths"]:
        lengths = [line["files"][name]["length"] for name in names]
        shape = (str(line["k"]), str(line["tree"] or "-"), f"{line['temperature']:g}", line["rule"])
        table.add_row(*shape, *(f"{length:.2f}" for length in lengths), f"{line['mean']:.2f}")
    output_console().print(table)
    for note in result["notes"]:
        output_console().print(note, style="yellow", soft_wrap=True)
    told = ", ".join(f"{name} {value}" for name, value in result["conditions"].items())
    output_console().print(f"Tokens a step, the target's own included; {told}", style="dim", soft_wrap=True)
