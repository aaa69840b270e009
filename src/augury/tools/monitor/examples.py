"""What stands around the rules: example configurations, and a page that says what goes where."""

from __future__ import annotations

from importlib import resources
from typing import Any

from augury.tools.monitor.alerts import alerts, left_out
from augury.tools.monitor.settings import Settings


def prometheus_example(settings: Settings) -> dict[str, Any]:
    """A configuration that scrapes one server and loads the rules."""
    job = next((m.value for m in settings.matchers if m.label == "job" and m.op == "=" and m.value), "vllm")
    return {
        "global": {"scrape_interval": "15s", "evaluation_interval": "15s"},
        "rule_files": ["augury-recording.yml", "augury-alerts.yml"],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": ["localhost:9093"]}]}]},
        "scrape_configs": [{"job_name": job, "static_configs": [{"targets": ["localhost:8000"]}]}],
    }


def alertmanager_example() -> dict[str, Any]:
    """Routes by severity; a server that is down, or drafts that are never accepted, silence what follows from it."""
    return {
        "route": {
            "receiver": "team",
            "group_by": ["alertname", "job", "model_name"],
            "group_wait": "30s",
            "group_interval": "5m",
            "repeat_interval": "12h",
            "routes": [
                {"receiver": "on-call", "matchers": ['severity="critical"'], "repeat_interval": "1h"},
                {"receiver": "nobody", "matchers": ['severity="info"']},
            ],
        },
        "inhibit_rules": [
            {
                "source_matchers": ['alertname="AuguryTargetDown"'],
                "target_matchers": ['alertname=~"Augury.*"', 'alertname!="AuguryTargetDown"'],
                "equal": ["job", "instance"],
            },
            {
                "source_matchers": ['alertname="AuguryDraftsNeverAccepted"'],
                "target_matchers": ['alertname=~"AuguryAcceptanceLow|AuguryOneApart"'],
                "equal": ["job", "model_name", "instance", "engine"],
            },
            {
                "source_matchers": ['alertname="AuguryDraftsNeverAccepted"'],
                "target_matchers": ['alertname=~"AuguryPositionWasteful|AuguryBelowPlain"'],
                "equal": ["job", "model_name"],
            },
            {
                "source_matchers": ['alertname="AuguryOneWithoutDrafts"'],
                "target_matchers": ['alertname="AuguryNoDrafts"'],
                "equal": ["job", "model_name", "instance", "engine"],
            },
        ],
        "receivers": [
            {"name": "team", "webhook_configs": [{"url": "http://localhost:5001/team"}]},
            {"name": "on-call", "webhook_configs": [{"url": "http://localhost:5001/on-call"}]},
            {"name": "nobody"},
        ],
    }


def readme(settings: Settings, command: str) -> str:
    """The page beside the files."""
    rows = "\n".join(
        f"| {alert.name} | {alert.wait} | {alert.severity} | {_first_words(alert.meaning)} |"
        for alert in alerts(settings)
    )
    missing = "".join(f"\n{name} is left out: {why}.\n" for name, why in left_out(settings).items())
    thresholds = ", ".join(f"{name} {value:g}" for name, value in settings.thresholds().items() if value is not None)
    return README.format(
        command=command, method=settings.method.name, k=settings.k, rows=rows, missing=missing, thresholds=thresholds,
        selector=settings.selected() or "every target",
    )  # fmt: skip


def runbook(settings: Settings) -> str:
    """The sections of the alerts that were written."""
    text = resources.files("augury.tools.monitor").joinpath("runbook.md").read_text(encoding="utf-8")
    head, *sections = text.split("\n## ")
    written = {alert.name for alert in alerts(settings)}
    return "\n## ".join([head, *(one for one in sections if one.partition("\n")[0] in written)])


def _first_words(text: str) -> str:
    return text.partition(". ")[0].rstrip(".").replace("|", "\\|")


README = """# Watching speculative decoding

Written by `{command}` for {method} with K={k}; it watches {selector}.
Thresholds: {thresholds}.

| file | where it goes |
|---|---|
| prometheus/augury-recording.yml | beside prometheus.yml, named in its `rule_files` |
| prometheus/augury-alerts.yml | the same; it reads what the recording rules write |
| prometheus/tests.yml | keep it with the rules: `promtool test rules tests.yml` after every change |
| prometheus/prometheus.example.yml | an example: take the `rule_files`, `alerting` and `scrape_configs` lines |
| alertmanager.example.yml | an example: take the routes and the inhibitions, put your receivers in |
| RUNBOOK.md | where people on call find it: what each alert means and what to do |
| grafana/augury-speculative-decoding.json | Grafana: Dashboards, New, Import; or a provisioning folder |

Check before loading: `promtool check rules prometheus/augury-*.yml`, `promtool test rules prometheus/tests.yml`,
`amtool check-config alertmanager.example.yml`. The rules name models by `model_name` and servers by `instance` and
`engine`; they expect all targets they see to speculate, so narrow `--selector` where some do not.

| alert | after | severity | what it means |
|---|---|---|---|
{rows}
{missing}
Every alert carries the first thing to do, and names its section of RUNBOOK.md. Publish that file where your pager can
open it, and write the kit again with `--runbook-url BASE` for links.
"""
