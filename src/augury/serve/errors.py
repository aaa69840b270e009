"""Errors as OpenAI's clients expect them: {"error": {"message", "type", "param", "code"}}."""

from __future__ import annotations

import re
from typing import Any

from starlette.responses import JSONResponse

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    422: "invalid_request_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
}
RETRY_AFTER = 2  # Retry-After, in seconds
LONGEST, LONGEST_NAME = 600, 120  # characters of a message and of a field's name: what a client sent comes back cut


class ApiError(Exception):
    """A request that cannot be answered, and the field at fault."""

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(cut(message, LONGEST))
        self.status, self.message, self.code = status, cut(message, LONGEST), code
        self.param = None if param is None else cut(param, LONGEST_NAME)

    def body(self) -> dict[str, Any]:
        """The JSON object of the answer."""
        kind = TYPES.get(self.status, "internal_server_error")
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code or self.status}
        return {"error": error}

    def response(self) -> JSONResponse:
        """The whole answer, with Retry-After for clients that may try again."""
        headers = {"Retry-After": str(RETRY_AFTER)} if self.status in (429, 503) else {}
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        if self.status in (408, 413):
            headers["Connection"] = "close"  # the rest of the body is not worth reading
        return JSONResponse(self.body(), self.status, headers)


def cut(text: str, most: int) -> str:
    """A text cut to at most `most` characters: its beginning and its end."""
    return text if len(text) <= most else f"{text[: most * 2 // 3]} ... {text[len(text) - most // 4 :]}"


def field_of(message: str, fields: Any) -> str | None:
    """The field that one of our messages is about: they begin with its name."""
    first = re.match(r"[A-Za-z_][\w.]*", message)
    name = first.group().rstrip(".") if first else ""
    if name == "SamplingParams":  # an argument it does not know
        quoted = re.search(r"'(\w+)'", message)
        return quoted.group(1) if quoted else None
    if message.startswith(("the prompt ", "token id ")):
        return "prompt" if "prompt" in fields else "messages"
    return name if name.partition(".")[0] in fields else None
