"""`augury monitor init`: files for Prometheus, Alertmanager and Grafana."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from augury.methods.eagle3 import EAGLE3
from augury.tools.monitor.alerts import left_out
from augury.tools.monitor.kit import files, write
from augury.tools.monitor.screen import show
from augury.tools.monitor.settings import method_names, settle
from augury.tools.shared.terminal import print_json


def init(
    directory: Annotated[Path, typer.Argument(metavar="[DIR]", help="Where to write.")] = Path("monitoring"),
    method: Annotated[str, typer.Option(help=f"How the servers speculate: {method_names()}.")] = EAGLE3.name,
    k: Annotated[int, typer.Option("--k", help="Their num_speculative_tokens.")] = 3,
    selector: Annotated[str, typer.Option(metavar="MATCHERS", help="Which targets, as in PromQL.")] = 'job="vllm"',
    model_name: Annotated[str | None, typer.Option(metavar="REGEX", help="Only these models.")] = None,
    kind: Annotated[
        Literal["ours", "vllm"],
        typer.Option("--for", help="Which servers: vLLM's, or Augury's, which export more metrics."),
    ] = "vllm",
    baseline_tok_s: Annotated[
        float | None,
        typer.Option(metavar="N", help="Output tokens per second and request without speculation, for an alert."),
    ] = None,
    min_acceptance: Annotated[
        float | None,
        typer.Option(metavar="SHARE", help="Alert below this rate; default: by method, none for look-ups."),
    ] = None,
    min_position_rate: Annotated[
        float | None, typer.Option(metavar="SHARE", help="Notify below this rate; default: 0.40, none for look-ups.")
    ] = None,
    datasource: Annotated[str | None, typer.Option(metavar="NAME", help="Grafana's default data source.")] = None,
    runbook_url: Annotated[
        str | None, typer.Option(metavar="BASE", help="Where you publish RUNBOOK.md, for links in alerts.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that are there.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Write Prometheus rules, alerts with their tests, an Alertmanager example and a Grafana dashboard."""
    settings = settle(
        method,
        k,
        selector,
        model_name,
        datasource,
        kind,
        min_acceptance,
        min_position_rate,
        baseline_tok_s,
        runbook_url,
    )
    texts = files(settings, _command())
    written = write(directory, texts, force)
    if as_json:
        found = {"directory": str(directory), "files": [str(path) for path in written]}
        print_json(found | {"thresholds": settings.thresholds(), "left_out": left_out(settings)})
    else:
        show(settings, directory, written)


def _command() -> str:
    """The command line it was called with, on one line in ASCII, to be recorded in the files."""
    words = ["augury", *sys.argv[1:]] if sys.argv[1:2] == ["monitor"] else ["augury", "monitor", "init"]
    return " ".join(shlex.join(words).split()).encode("ascii", "backslashreplace").decode().replace("`", "'")
