"""Which replica keeps each response of /v1/responses; ids are stored by API key, so that no key evicts another's."""

from __future__ import annotations

from collections import OrderedDict

KEPT = 1 << 16  # ids of all keys together
PATH = "/v1/responses"


class Keepers:
    """The replicas that keep the latest responses, by response id."""

    def __init__(self, keys: int, most: int = KEPT) -> None:
        self._most = max(1, most // max(1, keys))
        self._names: dict[str, OrderedDict[str, str]] = {}

    def note(self, client: str, response: str, name: str) -> None:
        """Remember which replica keeps a response; a key that has too many forgets its own oldest."""
        mine = self._names.setdefault(client, OrderedDict())
        mine[response] = name
        while len(mine) > self._most:
            mine.popitem(last=False)

    def of(self, client: str, path: str, earlier: str | None) -> str | None:
        """The replica keeping the response that a request of this key names in its path or as `earlier`, or None."""
        if not path.startswith(PATH):
            return None
        named = path.removeprefix(PATH).strip("/").partition("/")[0] or earlier
        return self._names.get(client, OrderedDict()).get(named or "")
