"""`augury bench gpu`: the engine's own speed, with everything else held still."""

from __future__ import annotations

import sys
from typing import Annotated, Any, Literal

import typer

from augury.config.errors import ConfigError
from augury.config.surfaces import object_from_json
from augury.tools.bench.gpu.screen import line_of, show, show_micro
from augury.tools.shared.progress import progress
from augury.tools.shared.terminal import output_console, print_json

MOST = 8192  # requests at once: far beyond what pays on one device
SPEC = '{"tree": {"max_nodes": 32, "top_k": 8}}'
Micro = Literal["attend", "linear", "verify", "norm", "rope"]


def bench_gpu(
    shape: Annotated[str, typer.Option(help="The target's shape: llama-8b, llama-1b, qwen3-8b, toy, ...")] = "llama-8b",
    drafter: Annotated[
        str, typer.Option(help="With commas: none, eagle3, draft:SHAPE, ngram, suffix, eagle, medusa, mtp, dflash, ...")
    ] = "none",
    k: Annotated[
        int | None, typer.Option("--k", min=1, help="Drafted tokens; else 4 for draft:, 3 for others.")
    ] = None,
    length: Annotated[
        float | None, typer.Option(min=1, help="Acceptance length to give them; else 3.5 for draft:, 3.0 for others.")
    ] = None,
    batch: Annotated[str, typer.Option(help="Requests at once, with commas.")] = "1,8,32",
    prompt: Annotated[int, typer.Option(min=1, help="Random tokens in each prompt.")] = 128,
    new: Annotated[int, typer.Option(min=2, help="New tokens for each request.")] = 512,
    eager: Annotated[bool, typer.Option("--eager", help="Without CUDA graphs.")] = False,
    exact: Annotated[bool, typer.Option("--exact", help="In exact mode: its cost.")] = False,
    quantization: Annotated[Literal["fp8"] | None, typer.Option("--quantization", "-q", help="Of the weights.")] = None,
    kv_cache_dtype: Annotated[
        Literal["auto", "fp8", "fp8_e4m3", "fp8_e5m2"], typer.Option(help="Of keys and values.")
    ] = "auto",
    device: Annotated[Literal["auto", "cuda", "cpu"], typer.Option(help="Where to run.")] = "auto",
    spec: Annotated[str, typer.Option(metavar="JSON", help="Further keys of speculative_config, a tree for one.")] = "",
    batched_tokens: Annotated[int | None, typer.Option(min=1, help="max_num_batched_tokens of the engine.")] = None,
    minutes: Annotated[float, typer.Option(min=0, help="Stop after this many minutes; 0: no limit.")] = 0.0,
    detail: Annotated[bool, typer.Option(help="Take some steps apart, and count their kernels.")] = True,
    kernels: Annotated[bool, typer.Option("--kernels", help="List the kernels that take the time.")] = False,
    micro: Annotated[Micro | None, typer.Option(help="Measure one kernel against its reference instead.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Everything as JSON on standard output.")] = False,
) -> None:
    """Measure the engine alone: random weights, random prompts, acceptance as given, beside vLLM's figures."""
    batches, drafters = _sizes(batch), [name.strip() for name in drafter.split(",") if name.strip()]
    if micro is not None:
        whole_step = {
            "drafter": drafters != ["none"] and micro != "verify",
            "length": length if drafters == ["none"] or micro != "verify" else None,
            "eager": eager,
            "exact": exact,
            "spec": spec,
            "batched-tokens": batched_tokens,
            "minutes": minutes,
            "no-detail": not detail,
            "kernels": kernels,
            "kv-cache-dtype": kv_cache_dtype != "auto",
            "quantization": quantization if micro != "linear" else None,
        }
        _refuse_unused(whole_step, "--micro measures one kernel, not the engine")
        if drafters != ["none"]:
            k, steps = _steps_of(shape, drafters, batches, k, length, prompt, new, device)
        else:
            steps = {}
        _run_micro(micro, shape, batches, k or 0, prompt + new // 2, device, quantization, as_json, steps)
        return
    if kernels and not detail:
        raise ConfigError("--kernels: --no-detail counts none; leave out one or the other.")
    from augury.tools.bench.gpu.run import measure

    if drafters == ["none"]:
        _refuse_unused({"k": k, "length": length, "spec": spec}, "--drafter none drafts nothing")
    with progress("starting", 1 + len(drafters) * (1 + len(batches))) as tick:
        report = measure(
            shape,
            drafters,
            batches,
            k,
            length,
            prompt,
            new,
            device,
            eager,
            minutes,
            detail,
            object_from_json(spec, "--spec", SPEC) if spec else None,
            batched_tokens,
            exact,
            quantization,
            kv_cache_dtype,
            on_row=_say_row,
            say=tick,
        )
    if as_json:
        print_json(report)
    else:
        show(output_console(), report, kernels)
    if not report["rows"] and not minutes:
        raise ConfigError(f"nothing was measured; {'; '.join(report['left_out'])}")
    if not report["rows"]:
        raise ConfigError(f"--minutes {minutes:g}: over before anything was measured; allow more, or 0 for no limit.")


def _say_row(row: dict[str, Any]) -> None:
    """Print a row as soon as it is measured, so that an interrupted run has shown what it measured."""
    print(line_of(row), file=sys.stderr, flush=True)


def _steps_of(
    shape: str,
    drafters: list[str],
    batches: list[int],
    k: int | None,
    length: float | None,
    prompt: int,
    new: int,
    device: str,
) -> tuple[int, dict[int, float]]:
    """A drafter's K, and the milliseconds of an engine step with it, by batch size."""
    from augury.tools.bench.gpu.run import measure

    if len(drafters) != 1:
        raise ConfigError(f"--drafter {','.join(drafters)}: --micro verify takes one, whose step it is a share of.")
    report = measure(shape, drafters, batches, k, length, prompt, new, device, detail=False, on_row=_say_row)
    if report["left_out"]:
        raise ConfigError(f"--drafter {'; '.join(report['left_out'])}")
    return report["rows"][0]["k"], {row["batch"]: row["step_ms"] for row in report["rows"]}


def _run_micro(
    micro: str,
    shape: str,
    batches: list[int],
    tokens: int,
    context: int,
    device: str,
    quantization: str | None,
    as_json: bool,
    steps: dict[int, float],
) -> None:
    from augury.tools.bench.gpu.micro import measure_micro

    kernel = f"{quantization} {micro}" if quantization else micro
    report = measure_micro(kernel, shape, batches, tokens, context, device, steps)
    if as_json:
        print_json(report)
    else:
        show_micro(output_console(), report)


def _refuse_unused(given: dict[str, Any], why: str) -> None:
    """Refuse options that have no effect, rather than ignore them."""
    unused = [f"--{name}" for name, value in given.items() if value]
    if unused:
        raise ConfigError(f"{', '.join(unused)}: {why}; leave out one or the other.")


def _sizes(text: str) -> list[int]:
    sizes = [size.strip() for size in text.split(",") if size.strip()]
    if not sizes or not all(size.isdecimal() and int(size) > 0 for size in sizes):
        raise ConfigError(f"--batch {text}: write batch sizes with commas, for example 1,8.")
    if any(int(size) > MOST for size in sizes):
        raise ConfigError(f"--batch {text}: at most {MOST} requests at once.")
    return list(dict.fromkeys(int(size) for size in sizes))
