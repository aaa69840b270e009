"""API keys: who has one, and whose caches a request may use."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence


class Keys:
    """The keys of a server; each is a tenant of its own unless they share."""

    def __init__(self, keys: Sequence[str], share: bool = False) -> None:
        self.apart = len(set(keys)) > 1 and not share  # a single key needs no separation
        self._tenants = [(hashlib.sha256(key.encode()).digest(), _tenant(key) if self.apart else "") for key in keys]

    def __bool__(self) -> bool:
        return bool(self._tenants)

    def tenant(self, header: bytes) -> str | None:
        """The tenant of an Authorization header, None without a valid key."""
        number = self.number(header)
        return None if number is None else self._tenants[number][1]

    def number(self, header: bytes) -> int | None:
        """The index of the key in a header, None without a valid one; all are compared, each in constant time."""
        kind, _, key = header.partition(b" ")
        digest = hashlib.sha256(key.strip()).digest()
        found = [i for i, (known, _) in enumerate(self._tenants) if hmac.compare_digest(digest, known)]
        return found[0] if found and kind.lower() == b"bearer" else None


def _tenant(key: str) -> str:
    """A name that stays the same across restarts, for saved caches, and does not reveal the key."""
    return hashlib.blake2b(key.encode(), digest_size=16, person=b"augury.tenant").hexdigest()


def salted(tenant: str, salt: str | None) -> str | None:
    """The salt that separates a request's caches from others': its key's tenant, of fixed length, and its own salt."""
    return f"{tenant}:{salt or ''}" if tenant else salt
