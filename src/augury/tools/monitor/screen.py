"""The summary that `augury monitor init` prints."""

from __future__ import annotations

import shlex
from pathlib import Path

from augury.tools.monitor.alerts import left_out
from augury.tools.monitor.settings import KitSettings
from augury.tools.shared.terminal import output_console


def show(settings: KitSettings, directory: Path, written: list[Path]) -> None:
    """Print the files, the alerts' thresholds, the alerts left out and why, and what to do next."""
    console = output_console()

    def say(text: str) -> None:
        console.print(text, soft_wrap=True, markup=False)

    say(f"wrote {len(written)} files for {settings.method.name}, K={settings.k}:")
    for path in written:
        say(f"  {path}")
    numbers = {name: value for name, value in settings.thresholds().items() if value is not None}
    say("alerts compare with: " + ", ".join(f"{name} {value:g}" for name, value in numbers.items()))
    for name, why in left_out(settings).items():
        say(f"left out: {name}: {why}")
    tests = shlex.quote(str(directory / "prometheus" / "tests.yml"))
    say(f"next: promtool test rules {tests}, then read {directory / 'README.md'}")
