"""`speculation_profile.json`: a drafter's acceptance, in the format that planners and simulators exchange.

`marginal_accept_rates[i]` is the share of drafts whose first i + 1 tokens were all accepted (vLLM's rate),
`conditional_accept_rates[i]` that share among the drafts whose first i tokens were accepted. A length includes the
token that every step emits, so 1 + the sum of the marginal rates is the mean length.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from augury.config.errors import ConfigError
from augury.config.files import write_text
from augury.tools.shared.json_files import read_json

KEYS: dict[str, type | tuple[type, ...]] = {
    "method": str,
    "num_speculative_tokens": int,
    "conditional_accept_rates": list,
    "marginal_accept_rates": list,
    "mean_accept_length": (int, float),
    "mean_accept_length_per_request": (int, float),
    "acceptance_length_histogram": dict,
    "measurement_conditions": dict,
}
SAME = 1e-4  # tolerance, since rates are rounded to six digits


def make_profile(
    method: str,
    tokens: int,
    accepted: Sequence[int],
    drafts: int,
    lengths: Sequence[int],
    per_request: float,
    conditions: Mapping[str, Any],
) -> dict[str, Any]:
    """A profile from counts: drafts accepted up to each position, all drafts, drafts by tokens accepted."""
    reached = [*accepted, *[0] * (tokens - len(accepted))]
    before = [drafts, *reached]
    conditional = [now / then if then else 0.0 for now, then in zip(reached, before, strict=False)]
    marginal = [count / drafts if drafts else 0.0 for count in reached]
    return {
        "method": method,
        "num_speculative_tokens": tokens,
        "conditional_accept_rates": [round(rate, 6) for rate in conditional],
        "marginal_accept_rates": [round(rate, 6) for rate in marginal],
        "mean_accept_length": round(1 + sum(marginal), 6),
        "mean_accept_length_per_request": round(per_request, 6),
        "acceptance_length_histogram": {str(i + 1): count for i, count in enumerate(lengths) if count},
        "verification_method": "longest_prefix",
        "accept_length_model": "measured_per_k",
        "measurement_conditions": dict(conditions),
    }


def check_profile(profile: Any, where: str) -> dict[str, Any]:
    """The profile itself if it is valid and its figures are consistent; otherwise a ConfigError."""
    if not isinstance(profile, dict):
        raise ConfigError(f"{where}: a speculation profile is a JSON object, found {type(profile).__name__}.")
    if str(profile.get("format", "")).startswith("augury-cost-curve"):
        raise ConfigError(f"{where}: this is a cost curve, not a speculation profile; give it to --cost-curve.")
    if missing := [name for name in KEYS if profile.get(name) is None]:
        raise ConfigError(f"{where}: {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing.")
    if wrong := [name for name, kind in KEYS.items() if not _is(profile[name], kind)]:
        raise ConfigError(f"{where}: {', '.join(wrong)} {'is' if len(wrong) == 1 else 'are'} of the wrong type.")
    marginal, conditional = (_rates(profile, f"{kind}_accept_rates", where) for kind in ("marginal", "conditional"))
    if abs(1 + sum(marginal) - profile["mean_accept_length"]) > SAME * max(1, len(marginal)):
        raise ConfigError(
            f"{where}: mean_accept_length is {profile['mean_accept_length']}, but 1 + the marginal rates is "
            f"{1 + sum(marginal):.6f}; are they conditional ones?"
        )
    product = 1.0
    for i, (rate, share) in enumerate(zip(conditional, marginal, strict=True)):
        product *= rate
        if abs(product - share) > SAME:
            raise ConfigError(f"{where}: the conditional rates up to {i} make {product:.6f}, the marginal is {share}.")
    return profile


def _is(value: Any, kind: type | tuple[type, ...]) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _rates(profile: dict[str, Any], name: str, where: str) -> list[float]:
    rates = profile[name]
    if len(rates) != profile["num_speculative_tokens"]:
        raise ConfigError(f"{where}: {name} has {len(rates)} numbers for {profile['num_speculative_tokens']} tokens.")
    for rate in rates:
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate <= 1 or math.isnan(rate):
            raise ConfigError(f"{where}: {name} holds {rate!r}; rates lie between 0 and 1.")
    return [float(rate) for rate in rates]


def read_profile(path: Path) -> dict[str, Any]:
    """Read and check a profile."""
    return check_profile(read_json(path), str(path))


def write_profile(profile: Mapping[str, Any], path: Path) -> None:
    """Check a profile and write it atomically."""
    check_profile(dict(profile), str(path))
    try:
        write_text(path, json.dumps(profile, indent=2, ensure_ascii=False) + "\n")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror}).") from None
