"""Acceptance in the formats that planners read: aiconfigurator's experiments and options, Dynamo's planner and mocker.

aiconfigurator (0.12, sdk/speculative.py) takes `nextn`, the tokens drafted, and `nextn_accepted`, those accepted per
step. Dynamo's planner (1.6, planner/config/planner_config.py) takes `speculative_nextn` and reads acceptance from its
workers' metrics; its mocker takes conditional rates by position, for five positions at most.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import yaml

MOST_PLACES = 5  # positions that Dynamo's mocker accepts


class _Plain(yaml.SafeDumper):
    """Writes YAML without anchors, because people edit these files."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


class Expected(NamedTuple):
    """Expected speculation: K, accepted tokens per step, and conditional acceptance rates by position."""

    tokens: int
    accepted: float
    rates: Sequence[float]


def aiconfigurator_words(expected: Expected | None) -> str:
    """Options of `aiconfigurator cli default`."""
    if expected is None:
        return "--nextn 0"
    return f"--nextn {expected.tokens} --nextn-accepted {_accepted(expected):g}"


def aiconfigurator_file(tasks: Mapping[str, Mapping[str, Any]], remarks: Sequence[str]) -> str:
    """A file for `aiconfigurator cli exp --yaml-path FILE`: experiments to be compared."""
    head = ["aiconfigurator cli exp --yaml-path FILE", *remarks]
    return _file({"exps": list(tasks), **tasks}, head)


def speculating(expected: Expected) -> dict[str, Any]:
    """The keys of one experiment that speculates."""
    return {"nextn": expected.tokens, "nextn_accepted": _accepted(expected)}


def dynamo_file(settings: Mapping[str, Any], expected: Expected | None, remarks: Sequence[str]) -> str:
    """A file for `python -m dynamo.planner --config FILE`, with the mocker's options in a comment at the top."""
    head = ["python -m dynamo.planner --config FILE", *remarks]
    if expected is not None:
        places = min(expected.tokens, MOST_PLACES)
        rates = ",".join(f"{rate:g}" for rate in expected.rates[:places])
        head.append(f"python -m dynamo.mocker ... --aic-nextn {places} --aic-nextn-accept-rates {rates}")
        if expected.tokens > places:
            head.append(f"The mocker takes {places} positions; acceptance beyond them is left out.")
    return _file({**settings, "speculative_nextn": expected.tokens if expected else 0}, head)


def _accepted(expected: Expected) -> float:
    """The rounded figure, clamped to its range."""
    return round(min(max(expected.accepted, 0.0), expected.tokens), 3)


def _file(content: Mapping[str, Any], head: Sequence[str]) -> str:
    lines = [f"# {' '.join(line.split())}" for line in head]
    body = yaml.dump(dict(content), Dumper=_Plain, sort_keys=False, allow_unicode=True)
    return "\n".join([*lines, body])
