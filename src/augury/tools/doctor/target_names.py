"""Facts from the names of target and drafter alone: family, MTP layers, vocabulary, size, and first release."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from augury.config.versions import Version, version
from augury.methods.mtp import ALIASES, MTP
from augury.tools.knowledge.families import Named, by_name

COPIES = re.compile(
    r"(?<![a-z0-9])(awq|gptq|gguf|bnb|int[48]|w[48]a(?:4|8|16)|[48]-?bit|q[2-8]_\w+|nvfp4|mxfp4)(?![a-z0-9])"
)
EXPERTS = re.compile(r"(?<![a-z0-9])(\d+)x(\d+(?:\.\d+)?)b(?![a-z0-9])")  # 8x7b
TOTAL = re.compile(r"(?<![a-z0-9.])(\d+(?:\.\d+)?)([bm])(?![a-z0-9])")  # 8b of Llama-3.1-8B, 135m of SmolLM2-135M
ACTIVE = re.compile(r"(?<![a-z0-9.])a(\d+(?:\.\d+)?)b(?![a-z0-9])")  # 3 of 30B-A3B
OF_TARGET = ("-accelerator", "-assistant")  # drafters whose names give the target's size
ROUTED = 2  # experts per token in models with names like 8x7b


class NamedFamily(NamedTuple):
    """A family, as inferred from a name."""

    family: str
    mtp: str  # own, none, assistant, or unknown
    since: str | None  # the first vLLM release that drafts with its layers, if known
    copy: bool  # the name is that of a quantised copy


def told_by(name: str) -> NamedFamily | None:
    """The family that a hub id or a directory's last part names; None if unknown or if the name itself says MTP."""
    last = _last(name)
    if MTP.name in last:
        return None  # the name itself says that the model was modified
    found = by_name(name)
    if found is None:
        return None
    since = ALIASES[found.alias] if found.alias else None
    return NamedFamily(found.family, found.mtp, since, found.mtp == "own" and COPIES.search(last) is not None)


def name_facts(name: str | None, release: Version | None) -> dict[str, Any]:
    """Facts from a target's name, keyed by the names of fact_names.py."""
    if name is None or _stands_in(name):
        return {}
    row, told = by_name(name), told_by(name)
    found = _row_facts(row, release) if row is not None else {}
    if told is None:
        return found | ({"named_mtp": "unknown"} if "/" in name else {})
    mtp = told.mtp
    if told.since and release is not None and release < version(told.since):
        mtp = "later"
    return found | {"named_mtp": mtp, "named_since": told.since, "named_copy": told.copy}


def _row_facts(row: Named, release: Version | None) -> dict[str, Any]:
    served = row.since is None or release is None or release >= version(row.since)
    return {
        "named_family": row.family,
        "named_depth": row.depth,
        "target_hybrid": row.hybrid,
        "target_multimodal": row.multimodal,
        "served_since": row.since,
        "served_yet": served,
    }


def pair_facts(target: str | None, draft: str | None) -> dict[str, Any]:
    """Facts from the two names together: tokenizers, vocabularies and sizes."""
    found: dict[str, Any] = {}
    for side, name in (("target", target), ("draft", draft)):
        row = by_name(name) if name and not _stands_in(name) else None
        if row is not None:
            found |= {f"{side}_tokenizer": row.tokenizer, f"{side}_vocab": row.vocab}
    found["vocabularies"] = _vocabularies(found)
    sizes = active_billions(target), active_billions(draft)
    if sizes[0] and sizes[1] and not _last(draft or "").endswith(OF_TARGET):
        found |= {"target_size": _billions(sizes[0]), "draft_size": _billions(sizes[1])}
        found["size_share"] = round(100 * sizes[1] / sizes[0])
    return found


def _vocabularies(found: dict[str, Any]) -> str | None:
    """How the two vocabularies compare (same, padding, sizes or tokenizers), by the names; None if unknown."""
    names = found.get("target_tokenizer"), found.get("draft_tokenizer")
    sizes = found.get("target_vocab"), found.get("draft_vocab")
    if None not in sizes and sizes[0] != sizes[1]:
        return "padding" if names[0] == names[1] else "sizes"
    if None in names:
        return None
    return "same" if names[0] == names[1] else "tokenizers"


def active_billions(name: str | None) -> float | None:
    """The active parameters per token in billions, as the name tells them; None if it does not."""
    last = _last(name or "")
    if found := ACTIVE.search(last):
        return float(found[1])
    if found := EXPERTS.search(last):
        return ROUTED * float(found[2])
    # A drafter's name may hold its target's size as well: Qwen2.5-Coder-32B-DRAFT-0.5B.
    sizes = [float(number) / (1000 if unit == "m" else 1) for number, unit in TOTAL.findall(last)]
    return min(sizes, default=None)


def _billions(number: float) -> str:
    return f"{number:g}B" if number >= 1 else f"{1000 * number:g}M"


def _last(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2].lower()


def _stands_in(name: str) -> bool:
    """Whether a name is a placeholder to be filled in."""
    return bool(set("<>${}") & set(name))
