"""All files of the kit, written without overwriting what an operator has changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from augury.config.errors import ConfigError
from augury.tools.monitor.alerts import alerts, left_out
from augury.tools.monitor.dashboard import dashboard
from augury.tools.monitor.recording import recording
from augury.tools.monitor.rule_tests import rule_tests
from augury.tools.monitor.settings import KitSettings
from augury.tools.shared.templates import fill, render


def files(settings: KitSettings, command: str) -> dict[str, str]:
    """Every file's text, by its path in the directory."""
    written, missing = alerts(settings), left_out(settings)
    rules = {"groups": [{"name": "augury-alerts", "rules": [alert.rule() for alert in written]}]}
    left = [f"{name} is left out: {why}." for name, why in missing.items()]
    job = next((m.value for m in settings.matchers if m.label == "job" and m.op == "=" and m.value), "vllm")
    thresholds = ", ".join(f"{name} {value:g}" for name, value in settings.thresholds().items() if value is not None)
    words = {"s": settings, "command": command, "alerts": written, "left_out": missing, "thresholds": thresholds}
    prometheus, alertmanager = fill("monitor/prometheus.yml", job=job), fill("monitor/alertmanager.yml")
    return {
        "README.md": render("monitor/readme.md", first_words=_first_words, **words),
        "RUNBOOK.md": _runbook({alert.name for alert in written}),
        "prometheus/augury-recording.yml": _yaml(recording(settings), "Speculation by engine and by model.", command),
        "prometheus/augury-alerts.yml": _yaml(rules, "Alerts on speculation.", command, *left),
        "prometheus/tests.yml": _yaml(rule_tests(settings), "promtool test rules tests.yml", command),
        "prometheus/prometheus.example.yml": _yaml(prometheus, "An example; change targets.", command),
        "alertmanager.example.yml": _yaml(alertmanager, "An example; change the receivers.", command),
        "grafana/augury-speculative-decoding.json": json.dumps(dashboard(settings), indent=2) + "\n",
    }


def _first_words(text: str) -> str:
    return text.partition(". ")[0].rstrip(".").replace("|", "\\|")


def _runbook(names: set[str]) -> str:
    """The runbook with only the sections of these alerts."""
    head, *sections = render("monitor/runbook.md").split("\n## ")
    return "\n## ".join([head, *(one for one in sections if one.partition("\n")[0] in names)])


def write(directory: Path, texts: dict[str, str], force: bool) -> list[Path]:
    """Write all files and return their paths; a ConfigError if one exists already, unless forced."""
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
    """Writes YAML without anchors, because people read these files."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write out repeated parts in full."""
        return True


def _yaml(value: dict[str, Any], *lines: str) -> str:
    comments = "".join(f"# {part}\n" for line in lines for part in line.splitlines())
    return comments + yaml.dump(value, Dumper=_Block, sort_keys=False, width=1000, allow_unicode=False)
