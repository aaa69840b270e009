"""`augury train`: the target answers the prompts, and a drafter is trained to predict the answers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from augury.config.errors import ConfigError
from augury.config.files import write_text
from augury.methods.registry import kinds
from augury.tools.shared.terminal import output_console, print_json
from augury.tools.train.kinds import check_kind
from augury.tools.train.page import training_page
from augury.tools.train.planned import PlannedRun, say_plan
from augury.tools.train.screen import draw, said, show

WHAT = f"What to train: {', '.join(kinds())}."

GPU = "H200"  # default of --plan
MOST_EPOCHS = 10_000


def train(
    method: Annotated[str, typer.Argument(help=WHAT)],
    out: Annotated[Path | None, typer.Option(help="Directory of the run; the drafter is in best/ there.")] = None,
    prompts: Annotated[
        list[Path] | None, typer.Option(help="Files of prompts (lines, JSON, JSONL, CSV); may be repeated.")
    ] = None,
    held_out: Annotated[
        list[Path] | None, typer.Option(help="Prompts that are never trained on; may be repeated.")
    ] = None,
    collected: Annotated[
        Path | None, typer.Option("--from", help="Served answers to train on: the directory of `serve --collect`.")
    ] = None,
    target: Annotated[str, typer.Option(help="The model to draft for.")] = "default",
    openings: Annotated[int, typer.Option(min=0, help="Additional prompts, written by the target itself.")] = 0,
    init: Annotated[Path | None, typer.Option(help="A drafter of this kind to continue from.")] = None,
    answers: Annotated[
        Path | None, typer.Option(help="Directory of the answers, to share between runs; default: --out.")
    ] = None,
    answer_tokens: Annotated[int, typer.Option(min=8, help="New tokens of each answer, at most.")] = 256,
    held_prompts: Annotated[int, typer.Option(min=1, help="Prompts of each held-out file, at most.")] = 80,
    vocabulary: Annotated[
        int, typer.Option(min=0, help="Size of the head's own vocabulary, of the most frequent tokens; 0: all tokens.")
    ] = 0,
    depth: Annotated[int, typer.Option(min=1, help="Draft positions that training unrolls.")] = 4,
    layers: Annotated[
        int | None, typer.Option(min=1, help="Layers of draft_model, pard and dflash (2), or of a medusa head (1).")
    ] = None,
    k: Annotated[int, typer.Option("--k", min=1, help="Drafted tokens in validation.")] = 3,
    temperature: Annotated[
        float, typer.Option(min=0, help="Validate sampled answers with sampled drafts; 0: greedy.")
    ] = 0.0,
    epochs: Annotated[float, typer.Option(min=0, help="Passes over all answers.")] = 6.0,
    batch: Annotated[int, typer.Option(min=1, help="Answers per step.")] = 64,
    accumulate: Annotated[
        int, typer.Option(min=1, help="Split each step into this many parts, if a whole one does not fit in memory.")
    ] = 1,
    longest: Annotated[int, typer.Option(min=16, help="Maximum number of tokens of a prompt and its answer.")] = 512,
    rate: Annotated[float, typer.Option(min=0, help="Peak learning rate.")] = 1e-3,
    loss: Annotated[Literal["kl", "ce", "tv", "lk", "dpace"], typer.Option(help="The training loss.")] = "kl",
    every: Annotated[int, typer.Option(min=1, help="Steps between validations.")] = 200,
    patience: Annotated[
        int, typer.Option(min=0, help="Stop after this many validations without improvement; 0: never.")
    ] = 0,
    minutes: Annotated[float, typer.Option(min=0, help="Stop training after this many minutes; 0: no limit.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of the order of the answers.")] = 0,
    device: Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="Where to run.")] = "auto",
    gate: Annotated[
        bool, typer.Option(help="First overfit one answer, and check that its drafts are accepted.")
    ] = True,
    plan: Annotated[
        bool, typer.Option("--plan", help="Only estimate what training would cost and gain, on --gpu.")
    ] = False,
    gpu: Annotated[str | None, typer.Option(help="With --plan: the GPU to plan for; H200 if left out.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The result as JSON on standard output.")] = False,
) -> None:
    """Train a drafter on the target's own answers; an interrupted run continues where it stopped."""
    check_kind(method, layers)
    for option, value in (("epochs", epochs), ("rate", rate), ("minutes", minutes), ("temperature", temperature)):
        if not math.isfinite(value):
            raise ConfigError(f"--{option} {value}: write a finite number.")
    if not epochs:
        raise ConfigError("--epochs 0: nothing would be trained; write how often every answer is seen.")
    if epochs > MOST_EPOCHS:
        raise ConfigError(f"--epochs {epochs:g}: {MOST_EPOCHS:,} at most; write fewer.")
    if plan:
        work = {
            "answer_tokens": answer_tokens,
            "longest": longest,
            "batch": batch,
            "epochs": epochs,
            "depth": depth,
            "words": vocabulary,
            "layers": layers,
            "minutes": minutes,
        }
        run = PlannedRun(method, target, gpu or GPU, prompts or [], held_out or [], openings, collected, k, work)
        say_plan(run, as_json)
        return
    if gpu is not None:
        raise ConfigError(f"--gpu {gpu}: only a --plan is for another GPU; training runs on this machine (--device).")
    if out is None:
        raise ConfigError("--out: name the directory of the run, or ask for a --plan.")
    from augury.tools.train.options import TrainOptions
    from augury.tools.train.run import run_training

    order = TrainOptions(
        method=method,
        target=target,
        prompts=prompts or [],
        held_out=held_out or [],
        out=out,
        answer_tokens=answer_tokens,
        held_prompts=held_prompts,
        vocabulary=vocabulary,
        depth=depth,
        layers=layers,
        device=device,
        openings=openings,
        collected=collected,
        init=init,
        answers=answers,
    )
    settings: dict[str, Any] = {
        "batch": batch,
        "accumulate": accumulate,
        "longest": longest,
        "rate": rate,
        "loss": loss,
        "every": every,
        "patience": patience,
        "minutes": minutes,
        "tokens": k,
        "seed": seed,
        "temperature": temperature,
    }
    if collected is None and not (prompts and held_out):
        raise ConfigError("give --prompts and --held-out, or --from with what a server collected.")
    if prompts and not held_out:
        raise ConfigError("--prompts: give --held-out, too; what is trained on says nothing about acceptance.")
    from augury.train.crew import speaks

    with said(quiet=as_json or not speaks()) as tell:
        result = run_training(order, settings, epochs, gate, tell)
    if not speaks():
        return
    draw(result, out / "curve.png")
    write_text(out / "report.html", training_page(result, out / "curve.png"))
    if as_json:
        print_json(result)
    else:
        show(output_console(), result)
