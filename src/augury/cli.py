"""The list of commands. Their options are in tools/, and torch loads only where it is needed."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

import typer

from augury import __version__
from augury.config import surfaces
from augury.config.errors import ConfigError
from augury.tools.config.command import config_app
from augury.tools.knowledge.command import knowledge_app
from augury.tools.models.command import models_app
from augury.tools.shared.group import Commands, later

app = typer.Typer(
    cls=Commands,
    help="Speculative decoding that speaks vLLM's language.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
RUN, MEASURE, OPERATE, LOOK_UP = "Run", "Prove, measure, tune", "Operate", "Look after"
app.add_typer(config_app, name="config", rich_help_panel=OPERATE)
app.add_typer(models_app, name="models", rich_help_panel=LOOK_UP)
app.add_typer(knowledge_app, name="knowledge", rich_help_panel=OPERATE)
monitor_app = typer.Typer(cls=Commands, help="Rules, alerts and a dashboard for Prometheus.", no_args_is_help=True)
app.add_typer(monitor_app, name="monitor", rich_help_panel=OPERATE)
drafter_app = typer.Typer(cls=Commands, help="Manage trained drafters.", no_args_is_help=True)
app.add_typer(drafter_app, name="drafter", rich_help_panel=LOOK_UP)
suffix_app = typer.Typer(cls=Commands, help="Build and show suffix caches.", no_args_is_help=True)
app.add_typer(suffix_app, name="suffix", rich_help_panel=LOOK_UP)


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


# The module of tools/ and the function or group in it, and what the list of commands says of it.
LATER = {
    RUN: {
        "generate": ("run.command:generate", "Answer one prompt or many, with accepted drafts coloured."),
        "demo": ("run.command:demo", "Answer three prompts: plain decoding against n-gram and EAGLE-3."),
        "serve": ("run.command:serve", "Serve a model with OpenAI's API, metrics and a page to watch speculation."),
        "chat": ("run.command:chat", "Chat with a server or a model, with tokens coloured by where they came from."),
    },
    MEASURE: {
        "certify": (
            "certify.command:certify",
            "Show that speculation changes nothing: by proof, on a model, on servers.",
        ),
        "bench": (
            "bench.command:bench_app",
            "Measure this engine and its peers, or (bench serve URL) a running server.",
        ),
        "train": ("train.command:train", "Train a drafter on its target's answers, and measure it on other prompts."),
        "tune": ("tune.command:tune", "Race methods, K and trees on your model and prompts, or on a server."),
    },
    OPERATE: {
        "doctor": ("doctor.command:doctor_app", "Lint vllm and augury commands, in scripts, YAML, JSON or Python."),
        "advise": (
            "advise.command:advise",
            "Predict which method pays off for a target, its traffic and its hardware.",
        ),
        "capacity": (
            "capacity.command:capacity",
            "Predict how many replicas and GPUs a trace needs for a target latency.",
        ),
        "replay": (
            "replay.command:replay",
            "Replay recorded conversations through look-up drafters: no model, no GPU.",
        ),
        "check": (
            "live.check.command:check",
            "Check a live server: drafts, acceptance against its band, queue, cache.",
        ),
        "watch": ("live.watch.command:watch", "Watch live servers side by side: acceptance, speed, who is down."),
        "ps": ("ps.command:ps", "List the servers on this machine and their load."),
        "diagnose": ("live.diagnose.command:diagnose", "Say why speculation on a live server is slow or off."),
    },
}
for panel, commands in LATER.items():
    for name, (place, text) in commands.items():
        later(app, name, f"augury.tools.{place}", text, panel)
BELOW = (
    (monitor_app, "init", "monitor.command:init", "Write Prometheus rules, alerts with their tests, and a dashboard."),
    (drafter_app, "list", "train.drafters:list_drafters", "List the drafters from installed pip packages."),
    (drafter_app, "export", "train.drafters:export", "Write a drafter in the format of the speculators library."),
    (drafter_app, "measure", "train.measure:measure", "Measure a drafter's acceptance length on prompts."),
    (drafter_app, "swap", "train.swap:swap", "Load another drafter into a running server; a worse one is rolled back."),
    (drafter_app, "trim", "train.drafters:trim", "Cut a drafter's vocabulary to its target's most frequent tokens."),
    (suffix_app, "build", "suffix.command:build", "Fill a suffix cache from a corpus and save it for an engine."),
    (suffix_app, "show", "suffix.command:show", "Check a suffix cache's file and say what is in it."),
)
for group, name, place, text in BELOW:
    later(group, name, f"augury.tools.{place}", text)


@app.command(rich_help_panel=LOOK_UP)
def version() -> None:
    """Print the version."""
    _version(True)


@app.command(hidden=True)
def reference(
    ctx: typer.Context, page: Annotated[Literal["cli", "methods"], typer.Argument(help="Which one.")] = "cli"
) -> None:
    """Print a page of the docs, or the part of it, that is read off the code."""
    from augury.tools.config.reference import cli_page
    from augury.tools.config.reference_methods import methods_table

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
            if "--help" not in words:
                from augury.serve.engine_start import start_ahead

                start_ahead()
            from augury.tools.run.serve_words import from_vllm

            words = from_vllm(words)
    except ConfigError as error:
        from augury.tools.shared.safe_text import safe_text

        print(safe_text(f"error: {error}"), file=sys.stderr)
        sys.exit(2)
    app(words)


if __name__ == "__main__":
    main()
