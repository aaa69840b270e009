"""Who may use a server without keys: programs and the server's own web pages, but no page of another site.

A browser runs pages of any site. Such a page can point a host name of its own at 127.0.0.1 and then read a server there
as if it were its own (the Host header gives it away), or send requests whose answers it cannot read (the Origin header
does).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from urllib.parse import urlsplit

from augury.serve.errors import ApiError

Headers = dict[bytes, bytes]
PRIVATE = (".localhost", ".local", ".internal")  # no stranger can own a name below these, nor one without a dot
HOW = "--allowed-host NAME allows it, as does --api-key for clients with the key"


def is_loopback(host: str) -> bool:
    """Whether an address to listen on is reached from this machine only."""
    found = _address(host)
    return host == "localhost" or (found is not None and found.is_loopback)


def check_visitor(headers: Headers, loopback: bool, allowed: Sequence[str]) -> None:
    """Raise a 403 for a page of another site; `loopback` says that only this machine can reach the server."""
    host = headers.get(b"host", b"").decode("latin-1").strip().lower()
    name = _name(f"//{host}")
    if name in allowed or "*" in allowed:
        return
    if loopback and host and not _homely(name):
        raise ApiError(403, f"the name {name[:100]!r} is not this server's; {HOW}.", code="host_not_allowed")
    origin = headers.get(b"origin")
    if origin is None:
        return
    page = origin.decode("latin-1").strip().lower()
    if _host_of(page) != host and _name(page) not in allowed:
        raise ApiError(403, f"pages of {page[:100]!r} may not use this server; {HOW}.", code="origin_not_allowed")


def _host_of(url: str) -> str:
    """Name and port of an origin, as a Host header has them; empty for `null` and nonsense."""
    try:
        return urlsplit(url).netloc
    except ValueError:
        return ""


def _name(url: str) -> str:
    try:
        return (urlsplit(url).hostname or "").rstrip(".")
    except ValueError:
        return ""


def _homely(name: str) -> bool:
    return bool(name) and ("." not in name or name.endswith(PRIVATE) or _address(name) is not None)


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None
