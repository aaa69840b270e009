"""The command line. Thin: a command reads its options and calls a function; torch loads only where it is needed."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from augury import __version__
from augury.commands.group import Commands, later
from augury.config import surfaces
from augury.config.errors import ConfigError

app = typer.Typer(
    cls=Commands,
    help="Speculative decoding that speaks vLLM's language.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
RUN, MEASURE, OPERATE, LOOK_UP = "Run", "Prove, measure, tune", "Operate", "Look after"
config_app = typer.Typer(help="Check, list and explain speculative_config.", no_args_is_help=True)
app.add_typer(config_app, name="config", rich_help_panel=OPERATE)
models_app = typer.Typer(help="List, fetch, inspect, check and delete models.", invoke_without_command=True)
app.add_typer(models_app, name="models", rich_help_panel=LOOK_UP)
knowledge_app = typer.Typer(help="What the doctor knows: list it, look one thing up.", no_args_is_help=True)
app.add_typer(knowledge_app, name="knowledge", rich_help_panel=OPERATE)
monitor_app = typer.Typer(cls=Commands, help="Rules, alerts and a dashboard for Prometheus.", no_args_is_help=True)
app.add_typer(monitor_app, name="monitor", rich_help_panel=OPERATE)
suffix_app = typer.Typer(cls=Commands, help="Build and show suffix caches.", no_args_is_help=True)
app.add_typer(suffix_app, name="suffix", rich_help_panel=LOOK_UP)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Name = Annotated[str, typer.Argument(help="'default', or a name that `augury models` lists.")]


def _version(wanted: bool) -> None:
    if wanted:
        print(f"augury {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Speculative decoding that speaks vLLM's language."""


@app.command(rich_help_panel=RUN)
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
    from augury.commands.generate import Job, gather
    from augury.commands.generate import generate as run
    from augury.config.sampling import SamplingParams

    params = SamplingParams(
        max_tokens=max_tokens, temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p, seed=seed, stop=stop, n=n
    )
    shortcuts = {"spec_method": spec_method, "spec_model": spec_model, "spec_tokens": spec_tokens}
    spec = surfaces.gather(speculative_config, shortcuts, os.environ)
    arguments = {"dtype": dtype, "device": device, "max_model_len": max_model_len, "speculative_config": spec}
    if not run(Job(gather(prompt, prompts_file), chat, params, model, arguments, as_json)):
        raise typer.Exit(1)


@app.command(rich_help_panel=RUN)
def demo(
    max_tokens: Annotated[int, typer.Option(help="Most tokens for each answer.")] = 96,
    as_json: Json = False,
) -> None:
    """Three prompts answered by the embedded model, then plain decoding against n-gram speculation in figures."""
    from augury.commands.demo import demo as run

    run(max_tokens, as_json)


LATER = {
    RUN: {
        "serve": (
            "commands.serve:serve",
            "Serve a model by OpenAI's API, with metrics and a page to watch speculation.",
        ),
        "chat": ("commands.chat:chat", "Chat with a server or a model, every token coloured by where it came from."),
    },
    MEASURE: {
        "certify": (
            "commands.certify:certify",
            "Show that speculation changes nothing: by proof, on a model, on servers.",
        ),
        "bench": (
            "bench.group:bench_app",
            "Measure this engine beside its peers, or (bench serve URL) a running server.",
        ),
        "tune": ("bench.tuning.command:tune", "Race methods, K and trees on your model and prompts, or on a server."),
    },
    OPERATE: {
        "doctor": ("commands.doctor:doctor", "Lint vllm and augury commands, in scripts, YAML, JSON, Python, ..."),
        "advise": ("commands.advise:advise", "Say which method will pay for a target, its traffic and its hardware."),
        "replay": ("commands.replay:replay", "Walk recorded conversations through look-up drafters: no model, no GPU."),
        "check": ("commands.check:check", "Check a live server: drafts, acceptance against its band, queue, cache."),
        "watch": ("commands.watch:watch", "Watch live servers side by side: acceptance, speed, who is down."),
        "diagnose": (
            "commands.diagnose:diagnose",
            "Say why speculation on a live server is slow or off, with evidence.",
        ),
    },
}
for panel, commands in LATER.items():
    for name, (place, text) in commands.items():
        later(app, name, f"augury.{place}", text, panel)


@app.command(rich_help_panel=LOOK_UP)
def version() -> None:
    """Print the version."""
    _version(True)


@config_app.command("check")
def check_config(
    text: Annotated[str | None, typer.Argument(metavar="[JSON]", help="The configuration.")] = None,
    speculative_config: Annotated[
        str | None,
        typer.Option("--speculative-config", "-sc", metavar="JSON", help="The same; -sc.key value works too."),
    ] = None,
    spec_method: Annotated[str | None, typer.Option(help="Its 'method'.")] = None,
    spec_model: Annotated[str | None, typer.Option(help="Its 'model'.")] = None,
    spec_tokens: Annotated[int | None, typer.Option(help="Its 'num_speculative_tokens'.")] = None,
    config: Annotated[Path | None, typer.Option(help="A YAML file with `speculative-config:` and `model:`.")] = None,
    target: Annotated[str | None, typer.Option(help="The target's directory: only its config.json is read.")] = None,
    as_of: Annotated[str | None, typer.Option(metavar="VERSION", help="What this vLLM release would say.")] = None,
    tensor_parallel_size: Annotated[int | None, typer.Option(min=1, help="The target's.")] = None,
    max_model_len: Annotated[int | None, typer.Option(min=1, help="The target's.")] = None,
    as_json: Json = False,
) -> None:
    """Resolve a configuration without loading anything. Exit code: 0 fine, 1 works with remarks, 2 refused."""
    from augury.commands.config import Asked, check

    shortcuts = {"spec_method": spec_method, "spec_model": spec_model, "spec_tokens": spec_tokens}
    asked = Asked(text, speculative_config, shortcuts, config, target, as_of, tensor_parallel_size, max_model_len)
    raise typer.Exit(check(asked, as_json))


@config_app.command("keys")
def list_keys(
    method: Annotated[str | None, typer.Option(help="Only what this method reads.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="The reference page of the docs.")] = False,
    as_json: Json = False,
) -> None:
    """Every key: what it takes, who reads it, in which vLLM releases it is valid."""
    from augury.commands.config_keys import keys

    keys(method, as_json, markdown)


@config_app.command("explain")
def explain_profiles(
    profile: Annotated[str | None, typer.Argument(help="One of them; all if left out.")] = None, as_json: Json = False
) -> None:
    """Four starting points, resolved: low latency, high throughput, balanced, agentic."""
    from augury.commands.config import explain

    explain(profile, as_json)


@models_app.callback()
def models(ctx: typer.Context, as_json: Json = False) -> None:
    """List, fetch, inspect, check and delete models."""
    if ctx.invoked_subcommand is None:
        list_models(as_json)


@models_app.command("list")
def list_models(as_json: Json = False) -> None:
    """What is in the cache."""
    from augury.commands.models import list_models as run

    run(as_json)


@models_app.command()
def pull(
    name: Annotated[str, typer.Argument(help="'default', a hub id, or a .gguf file to convert.")], as_json: Json = False
) -> None:
    """Fetch a model and make it ready to run."""
    from augury.commands.models import pull as run

    run(name, as_json)


@models_app.command()
def show(name: Name, as_json: Json = False) -> None:
    """What is known of a model, without loading it."""
    from augury.commands.models import show as run

    run(name, as_json)


@models_app.command()
def remove(name: Name, as_json: Json = False) -> None:
    """Delete a model from the cache."""
    from augury.commands.models import remove as run

    run(name, as_json)


@models_app.command()
def verify(name: Name, as_json: Json = False) -> None:
    """Read a model's files and check them against their checksums."""
    from augury.commands.models import verify as run

    run(name, as_json)


@knowledge_app.command("list")
def list_knowledge(
    kind: Annotated[str | None, typer.Option(help="pitfalls, gates, composability, methods, targets, ...")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="The reference page of the docs.")] = False,
    as_json: Json = False,
) -> None:
    """Every entry: what it says, in one line."""
    from augury.commands.knowledge import list_entries

    list_entries(kind, as_json, markdown)


@knowledge_app.command("show")
def show_knowledge(
    name: Annotated[str, typer.Argument(metavar="ID", help="As the doctor prints it in brackets.")],
    as_json: Json = False,
) -> None:
    """One entry in full: when it applies, why, what to do, where it comes from."""
    from augury.commands.knowledge import show_entry

    show_entry(name, as_json)


later(
    monitor_app, "init", "augury.commands.monitor:init",
    "Write Prometheus rules, alerts with their tests, an Alertmanager example and a Grafana dashboard.",
)  # fmt: skip
later(
    suffix_app, "build", "augury.commands.suffix:build",
    "Fill a suffix cache from a corpus and save it, for an engine to start with.",
)  # fmt: skip
later(
    suffix_app, "show", "augury.commands.suffix:show",
    "Check a suffix cache's file and say what is in it.",
)  # fmt: skip


@app.command(hidden=True)
def reference(
    ctx: typer.Context, page: Annotated[Literal["cli", "methods"], typer.Argument(help="Which one.")] = "cli"
) -> None:
    """Print a page of the docs, or the part of it, that is read off the code."""
    from augury.commands.reference import cli_page
    from augury.commands.reference_methods import methods_table

    print(cli_page(ctx.find_root().command) if page == "cli" else methods_table())


FROM_FILES = ("generate", "bench", "serve")  # commands whose flags may come from --config FILE


def main() -> None:
    """The `augury` command."""
    words = sys.argv[1:]
    try:
        words = surfaces.fold_dotted(words)
        if words[:1] and words[0] in FROM_FILES:
            before = 1 if words[:2] == ["bench", "serve"] else 0
            words = [*words[:before], *surfaces.unfold_yaml(words[before:])]
        if words[:1] == ["serve"]:
            from augury.commands.serve_words import from_vllm

            words = from_vllm(words)
    except ConfigError as error:
        from augury.operate.safe_text import safe_text

        print(safe_text(f"error: {error}"), file=sys.stderr)
        sys.exit(2)
    app(words)
