"""The many ways to ask for structured output, as the one that SamplingParams takes."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, Field

from augury.serve.errors import ApiError

GUIDED = {"guided_json": "json", "guided_regex": "regex", "guided_choice": "choice", "guided_grammar": "grammar"}


class Structured(BaseModel):
    """The fields of a request that ask for a structure: OpenAI's, vLLM's, and vLLM's old ones."""

    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: Annotated[list[str], Field(fail_fast=True)] | None = None
    guided_grammar: str | None = None

    def structure(self) -> dict[str, Any] | None:
        """The structure asked for, from whichever field, in the form of `structured_outputs`; None for free text."""
        asked: dict[str, dict[str, Any]] = {}
        if self.structured_outputs is not None:
            asked["structured_outputs"] = self.structured_outputs
        if self.response_format is not None and (wanted := _from_format(self.response_format)) is not None:
            asked["response_format"] = wanted
        for name, kind in GUIDED.items():
            if (value := getattr(self, name)) is not None:
                asked[name] = {kind: value}
        if len(asked) > 1:
            raise ApiError(400, f"{' and '.join(asked)} each ask for a structure; keep one.", next(iter(asked)))
        return next(iter(asked.values()), None)

    def structure_field(self) -> str | None:
        """The field other than `structured_outputs` that asks for a structure, if one does."""
        return next((name for name in ("response_format", *GUIDED) if getattr(self, name) is not None), None)


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
