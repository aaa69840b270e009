"""Errors as Anthropic's clients expect them, on the routes that are theirs: {"type": "error", "error": {...}}."""

from __future__ import annotations

from typing import Any

from starlette.responses import JSONResponse

from augury.serve.errors import ApiError

PATH = "/v1/messages"
TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def is_theirs(path: str) -> bool:
    """Whether a path is one of Anthropic's API."""
    return path == PATH or path.startswith(PATH + "/")


def error_body(error: ApiError) -> dict[str, Any]:
    """The JSON object of an error."""
    kind = TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": error.message}}


def error_response(error: ApiError, path: str) -> JSONResponse:
    """The answer to a request on this path, in the shape that its clients read."""
    response = error.response()
    if not is_theirs(path):
        return response
    kept = {name: value for name, value in response.headers.items() if name not in ("content-length", "content-type")}
    return JSONResponse(error_body(error), error.status, kept)
