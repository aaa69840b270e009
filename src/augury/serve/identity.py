"""Whose request it is: checked before anything else, and before its body is read."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.types import Scope

from augury.serve.errors import ApiError
from augury.serve.keys import Keys
from augury.serve.messages.errors import is_theirs
from augury.serve.scope import CLIENT, TENANT
from augury.serve.visitors import Headers, check_visitor

GUARDED = ("/v1/", "/tokenize", "/detokenize", "/augury/drafter")  # as in vLLM, figures and health need no key
FIGURES = ("/augury/live", "/metrics", "/load")  # but pages of other sites may not read them


class Identity:
    """Tells a server's clients apart by their keys, and programs from pages of other sites."""

    def __init__(self, keys: Keys, loopback: bool, hosts: Sequence[str]) -> None:
        self._keys, self._loopback, self._hosts = keys, loopback, hosts

    def note(self, scope: Scope, headers: Headers) -> None:
        """Write tenant and client into a scope; refuse a missing key or, if none is needed, pages of other sites."""
        shown = headers.get(b"authorization", b"")
        if not shown and is_theirs(scope["path"]):
            shown = b"Bearer " + headers.get(b"x-api-key", b"")  # as Anthropic's clients show it
        tenant = self._keys.tenant(shown) if self._keys else None
        if self._keys and tenant is None and scope["path"].startswith(GUARDED):
            raise ApiError(401, "a valid API key is needed: Authorization: Bearer KEY.", code="invalid_api_key")
        if not self._keys or (tenant is None and scope["path"] in FIGURES):
            check_visitor(headers, self._loopback, self._hosts)
        scope[TENANT] = tenant or ""
        scope[CLIENT] = "" if tenant is None else str(self._keys.number(shown))
