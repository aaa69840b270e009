"""A training report as one HTML file: acceptance on held-out prompts, the training curve, and the conditions."""

from __future__ import annotations

from base64 import b64encode
from html import escape
from pathlib import Path
from typing import Any

from augury.tools.shared.html import h2, page, table

ALT = "loss and acceptance length over the steps"


def training_page(result: dict[str, Any], picture: Path) -> str:
    """The whole report; the picture is left out if it does not exist."""
    best = result["best"]
    parts = [f"<h1>{escape(result['method'])} for {escape(result['target'])}</h1>"]
    if best is None:
        parts.append("<p>Nothing was validated: the run ended before the first validation.</p>")
    else:
        parts.append(
            f"<p>Best at step {best['step']} of {result['steps']}: <code>{escape(result['drafter'])}</code></p>"
        )
        heat = result["conditions"]["temperature"]
        drawn = f"temperature {heat:g}" if heat else "greedy"
        parts += [h2(f"Acceptance length on held-out prompts, {drawn}"), _lengths(best)]
        parts += [h2("Accepted at each position, % of drafts"), _positions(best)]
    if picture.is_file():
        parts += [h2("The run"), _picture(picture)]
    parts += [h2("Every validation"), _history(result["history"])]
    told = {name: result[name] for name in ("texts", "tokens", "gate")} | result["conditions"]
    return page(f"Augury: training of {result['method']}", parts, told, result["seconds"])


def _picture(file: Path) -> str:
    data = b64encode(file.read_bytes()).decode()
    return f'<p><img alt="{ALT}" style="max-width:100%" src="data:image/png;base64,{data}"></p>'


def _lengths(best: dict[str, Any]) -> str:
    most = max(map(len, best["length_at"].values()))
    rows = [(name, *(f"{length:.2f}" for length in lengths)) for name, lengths in best["length_at"].items()]
    return table(("", *(f"K={k}" for k in range(1, most + 1))), rows)


def _positions(best: dict[str, Any]) -> str:
    most = max(map(len, best["by_position"].values()))
    rows = [(name, *(f"{100 * share:.0f}" for share in shares)) for name, shares in best["by_position"].items()]
    return table(("", *(str(place) for place in range(1, most + 1))), rows)


def _history(history: list[dict[str, Any]]) -> str:
    names = list(history[-1]["length"]) if history else []
    rows = [
        (line["step"], f"{line['loss']:.3f}", *(f"{line['length'][name]:.2f}" for name in names)) for line in history
    ]
    return table(("step", "loss", *names), rows)
