"""Acceptance as other planners ask for it: aiconfigurator's `nextn_accepted`, Dynamo's conditional rates."""

from __future__ import annotations

from typing import Any

from augury.methods.bands import rate_for
from augury.tools.advise.accept import AcceptanceSource, Rated
from augury.tools.advise.candidates import Limited
from augury.tools.advise.predict import At
from augury.tools.advise.verdicts import JudgedMethod

MOST_NEXTN = 5  # Dynamo's estimator takes no more


def for_planners(line: JudgedMethod) -> dict[str, Any] | None:
    """K, accepted tokens per step and conditional rates at the smallest load that drafts; None if none does."""
    at = next((at for at in line.by_load if at.tokens), None)
    acceptance = line.candidate.acceptance
    if at is None or acceptance is None:
        return None
    return {
        "nextn": at.tokens,
        "nextn_accepted": round(at.tokens_per_step - 1, 3),
        "nextn_accept_rates": [round(rate, 3) for rate in conditional(acceptance, at)],
    }


def conditional(acceptance: AcceptanceSource, at: At) -> list[float]:
    """P(position accepted | all before it); a step without a draft counts as one whose first position is rejected."""
    inner = acceptance.inner if isinstance(acceptance, Limited) else acceptance
    if not isinstance(inner, Rated):
        return [rate_for(at.tokens_per_step, at.tokens)] * at.tokens
    rates, before = [], 1.0
    for marginal in inner.marginal[0, : at.tokens].tolist():
        now = inner.share * marginal
        rates.append(now / before if before else 0.0)
        before = now
    return rates


def words(record: dict[str, Any]) -> list[str]:
    """The record as options of those tools."""
    if not record:
        return []
    rates = ",".join(f"{rate:g}" for rate in record["nextn_accept_rates"])
    found = [f"aiconfigurator: nextn {record['nextn']}, nextn_accepted {record['nextn_accepted']:g}"]
    most = f" (it takes at most {MOST_NEXTN})" if record["nextn"] > MOST_NEXTN else ""
    found.append(f"Dynamo's mocker: --aic-nextn {record['nextn']} --aic-nextn-accept-rates {rates}{most}")
    return found
