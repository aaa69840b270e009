"""All files of the kit, and writing them without overwriting what an operator has changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from augury.config.errors import ConfigError
from augury.tools.monitor.alerts import alerts, left_out
from augury.tools.monitor.dashboard import dashboard
from augury.tools.monitor.examples import alertmanager_example, prometheus_example, readme, runbook
from augury.tools.monitor.recording import recording
from augury.tools.monitor.rule_tests import rule_tests
from augury.tools.monitor.settings import Settings


def files(settings: Settings, command: str) -> dict[str, str]:
    """Every file's text, by its place in the directory."""
    rules = {"groups": [{"name": "augury-alerts", "rules": [alert.rule() for alert in alerts(settings)]}]}
    missing = [f"{name} is left out: {why}." for name, why in left_out(settings).items()]
    return {
        "README.md": readme(settings, command),
        "RUNBOOK.md": runbook(settings),
        "prometheus/augury-recording.yml": _yaml(recording(settings), "Speculation by engine and by model.", command),
        "prometheus/augury-alerts.yml": _yaml(rules, "Alerts on speculation.", command, *missing),
        "prometheus/tests.yml": _yaml(rule_tests(settings), "promtool test rules tests.yml", command),
        "prometheus/prometheus.example.yml": _yaml(
            prometheus_example(settings), "An example; change targets.", command
        ),
        "alertmanager.example.yml": _yaml(alertmanager_example(), "An example; change the receivers.", command),
        "grafana/augury-speculative-decoding.json": json.dumps(dashboard(settings), indent=2) + "\n",
    }


def write(directory: Path, texts: dict[str, str], force: bool) -> list[Path]:
    """Write them all, or none: what is there stays unless forced."""
    there = [name for name in texts if (directory / name).exists()]
    if there and not force:
        raise ConfigError(
            f"{directory / there[0]} is there already{f', and {len(there) - 1} more' if len(there) > 1 else ''}; "
            "--force overwrites, or name another directory."
        )
    try:
        for name, text in texts.items():
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{error.filename or directory} cannot be written: {error.strerror}.") from None
    return [directory / name for name in texts]


class _Block(yaml.SafeDumper):
    """No anchors: people read these files."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write equal parts out again."""
        return True


def _yaml(value: dict[str, Any], *lines: str) -> str:
    comments = "".join(f"# {part}\n" for line in lines for part in line.splitlines())
    return comments + yaml.dump(value, Dumper=_Block, sort_keys=False, width=1000, allow_unicode=False)
