"""AdmissionReview, version 1: the API server's request and the response to it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from augury.config.errors import ConfigError
from augury.tools.doctor.webhook.judge import ToldFinding
from augury.tools.shared.safe_text import safe_text

VERSION = "admission.k8s.io/v1"
FailOn = Literal["error", "warning"]
USUAL_WARNING, LONGEST_WARNING, ALL_WARNINGS = (
    120,
    256,
    4096,
)  # letters: readable length, where one is cut, and the server's limit for all
MOST_REASONS = 10
LONGEST_REASON = 700
INVALID = 422
MARKS, MOST_MARKS = (b",", b"[", b"{"), 1 << 19  # bounds the number of values, each of which takes 60 bytes or more


class AdmissionRequest(NamedTuple):
    """The part of a review that is used."""

    uid: str
    operation: str
    kind: str
    namespace: str
    new: Any
    old: Any

    @property
    def judged(self) -> bool:
        """Whether there is an object that will run, unlike on DELETE or CONNECT."""
        return self.operation in ("CREATE", "UPDATE") and isinstance(self.new, dict)


def read_review(body: bytes) -> AdmissionRequest:
    """The request of a review; a ConfigError if the body is not an AdmissionReview."""
    if (marks := sum(map(body.count, MARKS))) > MOST_MARKS:
        raise ConfigError(f"the review has {marks} commas and opening brackets; at most {MOST_MARKS} are read.")
    try:
        review = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the body is not JSON ({str(error)[:100]}).") from None
    if not isinstance(review, dict) or review.get("kind") != "AdmissionReview":
        raise ConfigError("the body is not an AdmissionReview.")
    if review.get("apiVersion") != VERSION:
        raise ConfigError(f"this webhook speaks {VERSION}; set admissionReviewVersions: [v1].")
    request = review.get("request")
    if not isinstance(request, dict) or not isinstance(request.get("uid"), str) or not request["uid"]:
        raise ConfigError("the review has no request with a uid.")
    kind = request.get("kind")
    named = kind.get("kind") if isinstance(kind, dict) else ""
    said = (request["uid"], request.get("operation"), named, request.get("namespace"))
    uid, operation, name, namespace = (one if isinstance(one, str) else "" for one in said)
    return AdmissionRequest(uid, operation, name, namespace, request.get("object"), request.get("oldObject"))


def answer(uid: str, told: Sequence[ToldFinding], fail_on: FailOn = "error") -> dict[str, Any]:
    """The response: allowed with warnings, or refused with one line per reason."""
    bad = ("error", "warning") if fail_on == "warning" else ("error",)
    refusing = [one for one in told if one.severity in bad and not one.before]
    response: dict[str, Any] = {"uid": uid, "allowed": not refusing}
    if refusing:
        response["status"] = _status(refusing)
    if warnings := within_limits([_warning(one) for one in told if one not in refusing]):
        response["warnings"] = warnings
    if told:
        names = dict.fromkeys(f"{one.severity}:{one.id}" for one in told)
        response["auditAnnotations"] = {"findings": ",".join(names)[:LONGEST_WARNING]}
    return _review(response)


def allowed(uid: str, warning: str = "") -> dict[str, Any]:
    """The response that allows an unchecked object, with a warning that says why, if one is given."""
    return _review({"uid": uid, "allowed": True, **({"warnings": within_limits([warning])} if warning else {})})


def refused(uid: str, why: str) -> dict[str, Any]:
    """The response that refuses an object that could not be checked."""
    status = {"status": "Failure", "code": INVALID, "reason": "Invalid", "message": _line(why, LONGEST_REASON)}
    return _review({"uid": uid, "allowed": False, "status": status})


def _review(response: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": VERSION, "kind": "AdmissionReview", "response": response}


def _status(refusing: Sequence[ToldFinding]) -> dict[str, Any]:
    reasons = [_line(_reason(one), LONGEST_REASON) for one in refusing[:MOST_REASONS]]
    if len(refusing) > MOST_REASONS:
        reasons.append(f"and {len(refusing) - MOST_REASONS} more")
    causes = [
        {"reason": one.id, "message": _line(one.message, LONGEST_REASON), "field": one.field}
        for one in refusing[:MOST_REASONS]
    ]
    said = {"message": "\n".join(reasons), "details": {"causes": causes}}
    return {"status": "Failure", "code": INVALID, "reason": "Invalid", **said}


def _reason(one: ToldFinding) -> str:
    against = f" [vLLM {one.release}]" if one.release else ""
    return f"{one.field}: {one.severity}[{one.id}]: {one.message.rstrip('.')}. Fix: {one.fix}{against}"


def _warning(one: ToldFinding) -> str:
    """A finding as one warning; the fix is left out if it does not fit."""
    short = f"{one.id}: {one.message.rstrip('.')}"
    whole = f"{short}. Fix: {one.fix}"
    return _line(whole if len(whole) <= USUAL_WARNING else short, LONGEST_WARNING)


def within_limits(warnings: Sequence[str]) -> list[str]:
    """The warnings within the limits for each and for all; those that do not fit are only counted."""
    kept: list[str] = []
    lines = list(dict.fromkeys(_line(one, LONGEST_WARNING) for one in warnings))
    left = ALL_WARNINGS - USUAL_WARNING  # leaves room for the line that counts the rest
    for i, line in enumerate(lines):
        left -= len(line.encode())
        if left < 0:
            return [*kept, f"and {len(lines) - i} more warnings: augury doctor shows them all"]
        kept.append(line)
    return kept


def _line(text: str, most: int) -> str:
    """One line without control characters, cut to at most `most` bytes."""
    line = safe_text(" ".join(text.split()))
    raw = line.encode()
    return line if len(raw) <= most else raw[: most - 3].decode(errors="ignore") + "…"
