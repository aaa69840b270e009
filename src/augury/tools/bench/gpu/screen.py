"""The output of `augury bench gpu`: a line per row as it comes, then two tables."""

from __future__ import annotations

import json
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

Row = dict[str, Any]
UNKNOWN = "-"
LOOK: dict[str, Any] = {
    "title_justify": "left",
    "title_style": "bold",
    "box": SIMPLE,
    "padding": (0, 1, 0, 0),
    "pad_edge": False,
}


def line_of(row: Row) -> str:
    """A row in one line, for printing while the bench runs."""
    peer = f" ({row['peer']['name']} {row['peer']['tok_s']}, {row['ratio']:.2f}x)" if row["peer"] else ""
    parts = [f"{_name(row)} batch {row['batch']}: {row['tok_s']:.1f} tok/s{peer}", f"{row['step_ms']:.3f} ms a step"]
    split, kernels = row["split"], row["kernels"]
    if split:
        named = ("layout_target_ms", "verify_draft_ms", "gap_ms")
        parts.append(" + ".join(_number(split[name], 3) for name in named) + f" of {split['wall_ms']:.3f}")
    if kernels:
        parts.append(f"{kernels['kernels']:.0f} kernels")
    if row["idle"]:
        idle = row["idle"]
        parts.append(f"idle {idle['p50_us']:.0f} us, p99 {idle['p99_us']:.0f}; host busy {idle['host_busy']:.0%}")
    parts.append(f"{row['roofline']:.0%} of the roofline")
    if row["runs"] > 1:
        parts.append(f"run {row['runs']}")
    return "; ".join(parts)


def show(console: Console, report: dict[str, Any], kernels: bool = False) -> None:
    """Print the tables, what was left out, and the conditions."""
    if report["rows"]:
        console.print(_speeds(report))
        console.print(_steps(report["rows"]))
    if kernels:
        for row in report["rows"]:
            console.print(_kernels(row))
    for words in report["left_out"]:
        console.print(f"left out: {words}", style="yellow", soft_wrap=True)
    console.print(conditions_line(report), style="dim", soft_wrap=True)


def conditions_line(report: dict[str, Any]) -> str:
    """What every figure depends on."""
    libraries = ", ".join(f"{name} {number}" for name, number in report["versions"].items())
    line = (
        f"{report['gpu']}; {report['shape']}{_modes(report)}, random weights; {report['prompt']} random prompt tokens, "
        f"{report['new']} new, greedy, acceptance given, no prefix cache, all requests at once, after a warm-up; "
        f"copy {report['copy_tb_s']:.3g} TB/s; {libraries}."
    )
    peer = report["peer"]
    if any(row["peer"] for row in report["rows"]):
        line += f" {peer['peer']}: {peer['measured']}, {peer['gpu']}, torch {peer['torch']}, the same conditions."
    return line


def _modes(report: dict[str, Any]) -> str:
    """The engine's settings that differ from the defaults, in words."""
    named = {
        "quantization": report["quantization"],
        "speculative_config": report["spec"] and json.dumps(report["spec"]),
    }
    if report["kv_cache_dtype"] != "auto":
        named["kv_cache_dtype"] = report["kv_cache_dtype"]
    named["max_num_batched_tokens"] = report["batched"]
    words = [f"{name} {value}" for name, value in named.items() if value]
    return (
        (" in exact mode" if report["exact"] else "")
        + (" without CUDA graphs" if report["eager"] else "")
        + "".join(f", {word}" for word in words)
    )


def _speeds(report: dict[str, Any]) -> Table:
    rows = report["rows"]
    peer = report["peer"]["peer"] if any(row["peer"] for row in rows) else ""
    table = Table(title=f"{report['shape']}: tokens a second", **LOOK)
    table.add_column("drafter", no_wrap=True)
    names = (peer.replace(" ", "\n"), "ratio") if peer else ()
    for name in ("batch", "tok/s", *names, "tokens\na step", "ms\na step", "roof-\nline"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        beside = (f"{row['peer']['tok_s']}", f"{row['ratio']:.2f}x") if row["peer"] else (UNKNOWN, UNKNOWN)
        table.add_row(
            _name(row),
            str(row["batch"]),
            f"{row['tok_s']:.0f}",
            *(beside if peer else ()),
            f"{row['tokens_a_step']:.2f}",
            f"{row['step_ms']:.2f}",
            f"{row['roofline']:.0%}",
        )
    return table


def _steps(rows: list[Row]) -> Table:
    title = "a decode step amid the text: ms, kernels; graphs, memory so far"
    table = Table(title=title, **LOOK | {"padding": 0})  # eleven columns, which must fit into eighty characters
    table.add_column("drafter", overflow="ellipsis", min_width=8, max_width=16)  # the only one that may be cut
    names = (
        "batch",
        "layout\n+target",
        "verify\n+draft",
        "gap",
        "idle\nus",
        "host\nbusy",
        "ker-\nnels",
        "graphs",
        "capt.\ns",
        "GiB",
    )
    for name in names:
        table.add_column(name, justify="right", no_wrap=True, min_width=max(map(len, name.split("\n"))))
    for row in rows:
        split, kernels, idle = row["split"] or {}, row["kernels"] or {}, row["idle"] or {}
        busy = idle.get("host_busy", split.get("host_busy"))
        table.add_row(
            row["drafter"],
            str(row["batch"]),
            _number(split.get("layout_target_ms")),
            _number(split.get("verify_draft_ms")),
            _number(split.get("gap_ms")),
            _number(idle.get("p50_us"), 0),
            UNKNOWN if busy is None else f"{busy:.0%}",
            _number(kernels.get("kernels"), 0),
            str(row["graphs"]),
            f"{row['capture_s']:.1f}",
            _number(row["memory_gib"], 0),
        )
    return table


def _kernels(row: Row) -> Table:
    title = f"{_name(row)}, batch {row['batch']}: kernels a step"
    table = Table(title=title, **LOOK)
    table.add_column("kernel", overflow="ellipsis", no_wrap=True, min_width=min(len(title) - 12, 60), max_width=60)
    for name in ("count", "ms"):
        table.add_column(name, justify="right", no_wrap=True)
    for kernel in (row["kernels"] or {}).get("top", []):
        table.add_row(kernel["name"], f"{kernel['count']:.1f}", _number(kernel["ms"], 3))
    return table


def show_micro(console: Console, report: dict[str, Any]) -> None:
    """Print one kernel's table."""
    title = f"{report['kernel']}: {report['face']} against {report['reference']}, {report['shape']}"
    table = Table(title=title, **LOOK | {"padding": 0})
    table.add_column("case")  # wraps, so that no figure is cut short
    shares = any("of_step" in row for row in report["rows"])
    for name in ("us", "ref.\nus", "ratio", "GB/s", "of\ncopy", "largest\ndiff.", *(("of\nstep",) if shares else ())):
        table.add_column(name, justify="right", no_wrap=True, min_width=max(map(len, name.split("\n"))))
    for row in report["rows"]:
        table.add_row(
            row["case"],
            f"{row['us']:.1f}",
            f"{row['reference_us']:.1f}",
            f"{row['ratio']:.2f}",
            f"{row['gb_s']:.0f}",
            f"{row['of_copy']:.0%}",
            f"{row['difference']:.2g}",
            *((f"{row['of_step']:.1%}",) if shares else ()),
        )
    console.print(table)
    libraries = ", ".join(f"{name} {number}" for name, number in report["versions"].items())
    line = f"{report['gpu']}; copy {report['copy_tb_s']:.3g} TB/s; {libraries}."
    console.print(line, style="dim", soft_wrap=True)


def _name(row: Row) -> str:
    return f"{row['drafter']} K={row['k']} L={row['length']:g}" if row["k"] else str(row["drafter"])


def _number(value: float | None, digits: int = 2) -> str:
    return UNKNOWN if value is None else f"{value:.{digits}f}"
