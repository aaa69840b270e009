"""Log-probabilities in the shapes that clients know; the engine sends [token, logprob, rank, text], and the bytes
of the token where they are not those of its text."""

from __future__ import annotations

from typing import Any

LOWEST = -9999.0  # JSON has no infinity
Entry = list[list[Any]]
Logprobs = dict[str, list[Any]]


def _finite(value: float) -> float:
    return max(LOWEST, value)


def completion_logprobs(entries: list[Entry], offset: int, top: int) -> tuple[Logprobs, int]:
    """OpenAI's completion shape of a text that begins at `offset`, and its end; a prompt's first token has no score."""
    shape: Logprobs = {"text_offset": [], "token_logprobs": [], "tokens": [], "top_logprobs": []}
    for entry in entries:
        value, text = entry[0][1], entry[0][3]
        shape["text_offset"].append(offset)
        shape["tokens"].append(text)
        shape["token_logprobs"].append(None if value is None else _finite(value))
        # OpenAI's: the likeliest, and the chosen one in any case.
        listed = [*_best(entry, top), *([] if entry[0] in _best(entry, top) else entry[:1])]
        shape["top_logprobs"].append(_by_text(listed, entry[0]) if value is not None else None)
        offset += len(text)
    return shape, offset


def _by_text(listed: Entry, chosen: list[Any]) -> dict[str, float]:
    """Scores by text; among tokens that share one (parts of characters), the chosen or likeliest one has it as key."""
    scores: dict[str, float] = {}
    first = {item[3]: item[0] for item in (*reversed(listed), chosen)}  # the last one stays: the chosen one
    for token, value, _, text, *_ in listed:
        scores[text if first[text] == token else f"token_id:{token}"] = _finite(value)
    return scores


def chat_logprobs(entries: list[Entry], top: int) -> dict[str, Any]:
    """OpenAI's shape for chats."""
    return {
        "content": [{**_token(entry[0]), "top_logprobs": list(map(_token, _best(entry, top)))} for entry in entries]
    }


def _best(entry: Entry, top: int) -> Entry:
    """The `top` likeliest of an entry, in their order; the chosen one is among them only if it is that likely."""
    ranked = sorted(entry, key=lambda item: item[2] if item[2] is not None else 0)
    return ranked[:top]


def _token(item: list[Any]) -> dict[str, Any]:
    _, value, _, text, *real = item
    return {
        "token": text,
        "logprob": _finite(value),
        "bytes": real[0] if real else list(text.encode("utf-8", "replace")),
    }


def prompt_logprobs(entries: list[Entry | None]) -> list[dict[str, Any] | None]:
    """vLLM's shape for a prompt: token id to score."""
    return [
        None
        if entry is None
        else {
            str(token): {"logprob": _finite(value), "rank": rank, "decoded_token": text}
            for token, value, rank, text, *_ in entry
        }
        for entry in entries
    ]
