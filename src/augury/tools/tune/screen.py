"""The result of a tuning, as JSON and on the screen."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from augury.methods.registry import LOOK_UPS
from augury.tools.tune.choose import UNSURE, USE, Recommendation
from augury.tools.tune.families import PLAIN_ARM, Arm, ConfigFamily
from augury.tools.tune.intervals import Interval
from augury.tools.tune.race import Race

SHOWN = 8  # arms per load on the screen
APART = 0.15  # a difference in acceptance rate that implies different traffic
ENOUGH_DRAFTS = 200


def report_of(
    races: Mapping[int, Race],
    families: Sequence[ConfigFamily],
    choice: Recommendation,
    confirmed: Mapping[int, Interval],
    left_out: Mapping[str, str],
    conditions: Mapping[str, Any],
) -> dict[str, Any]:
    """The whole result as JSON."""
    specs = {family.name: family for family in families}
    return {
        "choice": {
            "verdict": choice.verdict,
            "reason": choice.reason,
            "family": choice.family,
            "speculative_config": choice.speculative,
            "k_by_concurrency": choice.ks,
        },
        "confirmed": [{"concurrency": load, **_interval(speed)} for load, speed in confirmed.items()],
        "loads": [_load(load, race, specs) for load, race in races.items()],
        "left_out": dict(left_out),
        "notes": notes_of(races, choice, confirmed, conditions),
        "conditions": dict(conditions),
    }


def _load(load: int, race: Race, families: Mapping[str, ConfigFamily]) -> dict[str, Any]:
    arms = sorted(race.lanes, key=lambda arm: (-race.lanes[arm].rung, -race.speed_up(arm).value))
    return {
        "concurrency": load,
        "decided": race.sure,
        "leader": race.leader.name,
        "verdict": _standing(race),
        "arms": [_arm(race, arm, families) for arm in arms if race.lanes[arm].runs],
    }


def _standing(race: Race) -> str:
    """The leader of a race, and whether it is decided or surely faster."""
    speed = race.speed_up(race.leader)
    if speed.low > 1:
        return f"{race.leader.name} leads" + (", decided" if race.sure else ", not decided")
    return f"nothing is surely faster; nearest {race.leader.name}"


def _arm(race: Race, arm: Arm, families: Mapping[str, ConfigFamily]) -> dict[str, Any]:
    lane = race.lanes[arm]
    runs = [run for every in lane.runs.values() for run in every]
    rate, length = lane.acceptance()
    return {
        "name": arm.name,
        "family": arm.family,
        "k": arm.k,
        **_interval(race.speed_up(arm)),
        "speculative_config": families[arm.family].at(arm.k) if arm.k else None,
        "tokens_per_second": round(sum(run.tokens for run in runs) / sum(run.seconds for run in runs), 3),
        "draft_acceptance_rate": round(rate, 4),
        "mean_acceptance_length": round(length, 4),
        "runs": len(runs),
        "rungs": lane.rung + 1,
        "out": lane.out or None,
    }


def _interval(speed: Interval) -> dict[str, float | None]:
    high = None if speed.high == float("inf") else round(speed.high, 4)
    return {"speed_up": round(speed.value, 4), "low": round(speed.low, 4), "high": high}


def notes_of(
    races: Mapping[int, Race], choice: Recommendation, confirmed: Mapping[int, Interval], conditions: Mapping[str, Any]
) -> list[str]:
    """Notes that a reader needs to interpret the figures."""
    notes = []
    if choice.verdict == UNSURE:
        notes.append("Give it more --minutes, more prompts, or a less busy machine.")
    if undecided := [str(load) for load, race in races.items() if not race.sure]:
        notes.append(f"The race at {', '.join(undecided)} at once ended undecided: its leader is likely, not sure.")
    if conditions.get("stopped"):
        notes.append("Stopped early: the figures cover the runs so far.")
    if conditions["racing"] == conditions["held_out"] and confirmed:
        notes.append("Too few prompts to hold any back for the final comparison: give 12 or more.")
    for load, speed in confirmed.items():
        if choice.ks[load] and speed.low <= 1:
            notes.append(f"At {load} at once the winner is not surely faster on the held-out prompts ({speed}).")
    families = {arm.family.partition(" ")[0] for race in races.values() for arm in race.lanes}
    for name in (name for name, look_up in LOOK_UPS.items() if look_up.forgets and name in families):
        notes.append(
            f"{name.capitalize()} remembered no earlier answers here; `augury replay` shows what they would add."
        )
    return [*notes, *_unlike(races, conditions.get("traffic"))]


def _unlike(races: Mapping[int, Race], traffic: Mapping[str, float] | None) -> list[str]:
    """A note if the acceptance of the server's own requests differs from that of the tuning prompts."""
    if not traffic or traffic["drafts"] < ENOUGH_DRAFTS:
        return []
    lanes = [
        lane for race in races.values() for arm, lane in race.lanes.items() if arm.k == max(a.k for a in race.lanes)
    ]
    rates = [lane.acceptance()[0] for lane in lanes if any(run.drafted for runs in lane.runs.values() for run in runs)]
    if not rates or abs(sum(rates) / len(rates) - traffic["draft_acceptance_rate"]) < APART:
        return []
    return [
        f"The server's own requests had {traffic['draft_acceptance_rate']:.0%} of their drafts accepted, these "
        f"{sum(rates) / len(rates):.0%}: give prompts that are more like its traffic."
    ]


def show(found: dict[str, Any]) -> None:
    """Print a table for each load, the choice, and the notes."""
    from rich.table import Table

    from augury.tools.shared.terminal import output_console

    console = output_console()
    for load in found["loads"]:
        table = Table(
            title=f"{load['concurrency']} at once: {load['verdict']}",
            title_justify="left",
            box=None,
            title_style="bold",
            header_style="dim",
            pad_edge=False,
        )
        for name in ("speed-up", "interval", "accepted", "length", "rungs"):
            if name == "speed-up":
                table.add_column("")
            table.add_column(name, justify="right")
        for arm in load["arms"][:SHOWN]:
            table.add_row(*_row(arm, arm["name"] == load["leader"], "canary_url" in found["conditions"]))
        console.print(table)
        if len(load["arms"]) > SHOWN:
            console.print(f"[dim]and {len(load['arms']) - SHOWN} slower ones (--json, --report)[/]")
        console.print()
    for name, why in found["left_out"].items():
        console.print(f"[yellow]left out[/] {name}: {why}", soft_wrap=True)
    _show_choice(console, found)


def _row(arm: dict[str, Any], leads: bool, canary: bool) -> list[str]:
    if arm["name"] == PLAIN_ARM.name:
        return [f"[dim]{'as it runs' if canary else 'plain'}[/]", "1.00", "", "", "", ""]
    high = "inf" if arm["high"] is None else f"{arm['high']:.2f}"
    colour = "green" if arm["low"] > 1 else "red" if arm["high"] is not None and arm["high"] < 1 else "yellow"
    name = f"[bold]{arm['name']}[/]" if leads else arm["name"]
    return [
        name,
        f"[{colour}]{arm['speed_up']:.2f}[/]",
        f"{arm['low']:.2f}-{high}",
        f"{arm['draft_acceptance_rate']:.0%}",
        f"{arm['mean_acceptance_length']:.2f}",
        str(arm["rungs"]),
    ]


def last_word(found: Mapping[str, Any]) -> str:
    """The prompts of the final comparison, in words."""
    told = found["conditions"]
    return "once more on the same prompts" if told["racing"] == told["held_out"] else "on held-out prompts"


def _show_choice(console: Any, found: dict[str, Any]) -> None:
    choice = found["choice"]
    if choice["verdict"] != USE:
        colour = "yellow" if choice["verdict"] == UNSURE else "red"
        console.print(f"[bold {colour}]{choice['verdict']}[/]: {choice['reason']}", soft_wrap=True)
    else:
        console.print(f"[bold green]{choice['family']}[/]: {choice['reason']}", soft_wrap=True)
        if choice["speculative_config"] is not None:
            console.print(f"\n  -sc '{json.dumps(choice['speculative_config'])}'\n", soft_wrap=True, markup=False)
        for entry in found["confirmed"]:
            high = "inf" if entry["high"] is None else f"{entry['high']:.2f}"
            console.print(
                f"{last_word(found)}, {entry['concurrency']} at once: {entry['speed_up']:.2f} times plain "
                f"({entry['low']:.2f}-{high})",
                soft_wrap=True,
            )
    for note in found["notes"]:
        console.print(f"[dim]{note}[/]", soft_wrap=True)
    told = found["conditions"]
    console.print(
        f"[dim]{told['model']}, against {told['baseline']}; prompts {told['prompts']}, {told['max_tokens']} tokens, "
        f"temperature {told['temperature']:g}; {told['confidence']:.0%} sure over all comparisons; "
        f"{told['seconds']:.0f} s[/]",
        soft_wrap=True,
    )
