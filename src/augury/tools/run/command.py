"""The options of `augury generate` and `augury demo`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from augury.config import surfaces
from augury.tools.shared.options import Json


def generate(
    prompt: Annotated[str | None, typer.Argument(help="The prompt; without it, standard input is read.")] = None,
    model: Annotated[str, typer.Option(help="'default', a directory, a .gguf file, or a hub id.")] = "default",
    prompts_file: Annotated[
        Path | None, typer.Option(help='Many prompts: one a line, or JSONL with "prompt" or "messages".')
    ] = None,
    chat: Annotated[bool, typer.Option("--chat/--raw", help="Use the model's chat template, or the bare text.")] = True,
    max_tokens: Annotated[int, typer.Option(help="Most tokens to generate.")] = 256,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token.")] = 0.0,
    top_p: float = 1.0,
    top_k: Annotated[int, typer.Option(help="0: all tokens.")] = 0,
    min_p: float = 0.0,
    seed: int | None = None,
    stop: Annotated[list[str] | None, typer.Option(help="End before this text; may be repeated.")] = None,
    n: Annotated[int, typer.Option("--n", "-n", help="Answers for each prompt.")] = 1,
    speculative_config: Annotated[
        str | None, typer.Option("--speculative-config", "-sc", metavar="JSON", help="How to speculate, as in vLLM.")
    ] = None,
    spec_method: Annotated[str | None, typer.Option(help="Its 'method'.")] = None,
    spec_model: Annotated[str | None, typer.Option(help="Its 'model'.")] = None,
    spec_tokens: Annotated[int | None, typer.Option(help="Its 'num_speculative_tokens'.")] = None,
    max_model_len: Annotated[int | None, typer.Option(help="Longest prompt and answer together.")] = None,
    dtype: str = "auto",
    device: str = "auto",
    as_json: Json = False,
) -> None:
    """Answer a prompt, or many. On a terminal, tokens that came from accepted drafts have another colour."""
    from augury.config.sampling import SamplingParams
    from augury.tools.run.generate import Job
    from augury.tools.run.generate import generate as run
    from augury.tools.shared.given_prompts import gather

    params = SamplingParams(
        max_tokens=max_tokens, temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p, seed=seed, stop=stop, n=n
    )
    shortcuts = {"spec_method": spec_method, "spec_model": spec_model, "spec_tokens": spec_tokens}
    spec = surfaces.gather(speculative_config, shortcuts, os.environ)
    arguments = {"dtype": dtype, "device": device, "max_model_len": max_model_len, "speculative_config": spec}
    if not run(Job(gather(prompt, prompts_file), chat, params, model, arguments, as_json)):
        raise typer.Exit(1)


def demo(
    max_tokens: Annotated[int, typer.Option(help="Most tokens for each answer.")] = 96,
    as_json: Json = False,
) -> None:
    """Three prompts answered by the embedded model, then plain decoding against n-gram speculation in figures."""
    from augury.tools.run.demo import demo as run

    run(max_tokens, as_json)
