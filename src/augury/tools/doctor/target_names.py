"""What a target's name alone tells: its family, and whether that ships MTP layers."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from augury.config.versions import Version, version
from augury.methods.mtp import ALIASES, MTP
from augury.tools.knowledge.base import Named, knowledge

COPIES = re.compile(
    r"(?<![a-z0-9])(awq|gptq|gguf|bnb|int[48]|w[48]a(?:4|8|16)|[48]-?bit|q[2-8]_\w+|nvfp4|mxfp4)(?![a-z0-9])"
)


class Told(NamedTuple):
    """A family, as a name tells it."""

    family: str
    mtp: str  # own, none, assistant, or unknown
    since: str | None  # the first vLLM release that drafts with its layers, where that is known
    copy: bool  # the name is that of a quantised copy


def told_by(name: str) -> Told | None:
    """The family a hub id or a directory's last part names; of several the one that says most of it."""
    last = name.rstrip("/").rpartition("/")[2].lower()
    if MTP.name in last:
        return None  # it says itself that it has been worked on
    matches = [(part, named) for named in _families() for part in named.names if _says(last, part)]
    if not matches:
        return None
    found = max(matches, key=lambda match: len(match[0]))[1]
    since = ALIASES[found.alias] if found.alias else None
    return Told(found.family, found.mtp, since, found.mtp == "own" and COPIES.search(last) is not None)


def name_facts(name: str | None, release: Version | None) -> dict[str, Any]:
    """By the names of fact_names.py; a bare word is a stand-in more often than a model."""
    if name is None or "/" not in name or set("<>${}") & set(name):
        return {}
    told = told_by(name)
    if told is None:
        return {"named_mtp": "unknown"}
    mtp = told.mtp
    if told.since and release is not None and release < version(told.since):
        mtp = "later"
    return {"named_family": told.family, "named_mtp": mtp, "named_since": told.since, "named_copy": told.copy}


def _families() -> list[Named]:
    return [named for entry in knowledge("targets").values() for named in entry.families]


def _says(name: str, part: str) -> bool:
    """Whether a name holds a part that ends where a version or a size ends: qwen3 is not in qwen3.5."""
    return re.search(rf"(?<![a-z0-9]){re.escape(part)}(?!\d|\.\d)", name) is not None
