"""Turns the races at several loads into one configuration: the family that is best over all, with K by load."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from augury.tools.tune.families import PLAIN_ARM, Arm, ConfigFamily
from augury.tools.tune.race import Race

USE, UNSURE, DO_NOT = "use", "not sure", "do not speculate"


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The recommended configuration."""

    verdict: str  # USE; UNSURE: too little time to tell; DO_NOT: no relevant speed-up
    family: str | None
    speculative: dict[str, Any] | None
    ks: dict[int, int]  # by concurrent requests; 0: drafting does not pay
    reason: str


def choose(
    races: Mapping[int, Race], families: Sequence[ConfigFamily], baseline: str = "plain decoding"
) -> Recommendation:
    """The family with the best mean over the loads, at its best K for each, or without drafts if not surely faster."""
    best = {family.name: {load: _best(race, family) for load, race in races.items()} for family in families}

    def worth(name: str) -> float:
        return math.fsum(math.log(races[load].speed_up(arm).value) for load, arm in best[name].items()) / len(races)

    names = sorted(best, key=worth, reverse=True)
    if not names or all(arm == PLAIN_ARM for arm in best[names[0]].values()):
        unsure = any(race.speed_up(race.leader).high > 1 + race.same for race in races.values())
        return Recommendation(
            UNSURE if unsure else DO_NOT, None, None, dict.fromkeys(races, 0), _why_not(races, baseline)
        )
    family = next(family for family in families if family.name == names[0])
    ks = {load: arm.k for load, arm in sorted(best[family.name].items())}
    spec = written(family, ks) if family.speculative else None  # a canary's settings are unknown here
    return Recommendation(USE, family.name, spec, ks, _why(races, best[family.name], baseline))


def written(family: ConfigFamily, ks: Mapping[int, int]) -> dict[str, Any]:
    """The configuration, with a table by batch size if K differs by load."""
    most = max(ks.values())
    spec = family.at(most)
    if len(set(ks.values())) == 1:
        return spec
    return spec | {"num_speculative_tokens_per_batch_size": ranges(ks)}


def ranges(ks: Mapping[int, int]) -> list[list[int]]:
    """[first, last, K] by concurrent requests; the border between two measured loads is their geometric mean."""
    loads = sorted(ks)
    table: list[list[int]] = []
    first = 1
    for load, following in zip(loads, [*loads[1:], None], strict=True):
        last = max(load, math.isqrt(load * following)) if following else max(load, first)
        if table and table[-1][2] == ks[load]:
            table[-1][1] = last
        else:
            table.append([first, last, ks[load]])
        first = last + 1
    return table


def _best(race: Race, family: ConfigFamily) -> Arm:
    """The family's fastest arm if it is surely faster than plain decoding, otherwise plain decoding."""
    ran = [arm for arm in family.arms if race.lanes[arm].runs]
    arm = max(ran, key=lambda arm: (race.lanes[arm].rung, race.speed_up(arm).value), default=PLAIN_ARM)
    return arm if race.speed_up(arm).low > 1 else PLAIN_ARM


def _why(races: Mapping[int, Race], best: Mapping[int, Arm], baseline: str) -> str:
    won = [(load, arm) for load, arm in sorted(best.items()) if arm != PLAIN_ARM]
    parts = [f"{races[load].speed_up(arm)} times as fast at {load}" for load, arm in won]
    return f"surely faster than {baseline}: {', '.join(parts)} at once"


def _why_not(races: Mapping[int, Race], baseline: str) -> str:
    nearest = [(load, race.leader, race.speed_up(race.leader)) for load, race in sorted(races.items())]
    told = ", ".join(f"{arm.name} {speed} at {load}" for load, arm, speed in nearest if arm != PLAIN_ARM)
    return f"nothing tried is surely faster than {baseline} (nearest: {told or 'none'} at once)"
