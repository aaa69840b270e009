"""The many ways to ask for structured output, as the one that SamplingParams takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from augury.serve.errors import ApiError

if TYPE_CHECKING:
    from augury.serve.openai import Generation

GUIDED = {"guided_json": "json", "guided_regex": "regex", "guided_choice": "choice", "guided_grammar": "grammar"}


def structure_of(request: Generation) -> dict[str, Any] | None:
    """The `structured_outputs` of a request, from whichever field holds it; None for free text."""
    asked: dict[str, dict[str, Any]] = {}
    if request.structured_outputs is not None:
        asked["structured_outputs"] = request.structured_outputs
    if request.response_format is not None and (wanted := _from_format(request.response_format)) is not None:
        asked["response_format"] = wanted
    for name, kind in GUIDED.items():
        if (value := getattr(request, name)) is not None:
            asked[name] = {kind: value}
    if len(asked) > 1:
        raise ApiError(400, f"{' and '.join(asked)} each ask for a structure; keep one.", next(iter(asked)))
    return next(iter(asked.values()), None)


def asked_by(request: Generation) -> str | None:
    """The field other than `structured_outputs` that asks for a structure, if one does."""
    return next((name for name in ("response_format", *GUIDED) if getattr(request, name) is not None), None)


def _from_format(given: dict[str, Any]) -> dict[str, Any] | None:
    kind = given.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return {"json_object": True}
    if kind == "json_schema":
        inner = given.get("json_schema")
        schema = inner.get("schema") if isinstance(inner, dict) else None
        if not isinstance(schema, dict):
            raise ApiError(400, "response_format.json_schema.schema must be a JSON schema.", "response_format")
        return {"json": schema}
    raise ApiError(
        400, f"response_format.type={kind!r}; use 'text', 'json_object' or 'json_schema'.", "response_format"
    )
