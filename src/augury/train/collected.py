"""Reads what a server collected (`augury serve --collect`), as texts to train on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from augury.config.errors import ConfigError
from augury.config.fingerprint import fingerprint, name_of
from augury.train.corpus import SHORTEST, Corpus

HELD = 20  # one prompt in this many is held out for validation
MOST = 2**31  # more than any token id
Text = tuple[list[int], list[int], bool]


def read_collected(
    directory: Path, target: Path, longest: int, left_out: Callable[[list[int]], bool] | None = None
) -> tuple[Corpus, Corpus]:
    """The texts to train on, and those to validate with.

    Answers that begin past `longest` tokens are left out, and so are those whose prompts `left_out` holds out.
    """
    about = _about(directory, target)
    texts = _all(directory, longest)
    if left_out is not None and len(texts) > 1:
        texts = [text for text in texts if not left_out(text[0])]
        if len(texts) < 2:
            raise ConfigError(f"--from {directory}: nearly every prompt is held out too; nothing is left to train on.")
    if len(texts) < 2:
        raise ConfigError(f"--from {directory}: {len(texts)} usable answers; `augury serve --collect` makes more.")
    trained, held = _divided(texts)
    if not trained:
        raise ConfigError(f"--from {directory}: all {len(texts)} answers are to one prompt; collect more traffic.")
    return Corpus.of(trained, about), Corpus.of(held, about)


def count_collected(directory: Path, longest: int) -> int:
    """How many answers there are to train on, whichever target gave them."""
    trained, _ = _divided(_all(directory, longest))
    if not trained:
        raise ConfigError(f"--from {directory}: no answers there; `augury serve --collect` makes some.")
    return len(trained)


def _all(directory: Path, longest: int) -> list[Text]:
    return [text for file in sorted(directory.glob("*.jsonl")) for text in _texts(file, longest)]


def _divided(texts: list[Text]) -> tuple[list[Text], list[Text]]:
    """Split texts into training and held-out ones, by prompts, because a repeated prompt is answered alike."""
    asked = [tuple(prompt) for prompt, _, _ in texts]
    kept = set(list(dict.fromkeys(asked))[::HELD])
    held = {(one, tuple(text[1])): text for one, text in zip(asked, texts, strict=True) if one in kept}
    return [text for one, text in zip(asked, texts, strict=True) if one not in kept], list(held.values())


def _about(directory: Path, target: Path) -> dict[str, str]:
    """The description of the answers; refused if another target gave them, whose answers a drafter must not learn."""
    try:
        about: dict[str, str] = json.loads((directory / "about.json").read_text())
        whose, mark = about["target"], about["fingerprint"]
    except (OSError, ValueError, KeyError, TypeError):
        raise ConfigError(
            f"--from {directory}: no about.json of `augury serve --collect`; name the directory it wrote to."
        ) from None
    if mark != fingerprint(target):
        raise ConfigError(f"--from {directory} holds answers of {whose}, and --target is {name_of(target)}.")
    return about


def _texts(file: Path, longest: int) -> Iterator[Text]:
    """The answers of one file; a line that a killed server left half written is skipped."""
    with file.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            try:
                one = json.loads(line)
                tokens, start, sampled = one["tokens"], one["start"], bool(one["sampled"])
            except (ValueError, KeyError, TypeError, RecursionError):
                continue
            if _is_text(tokens, start) and start + SHORTEST <= min(len(tokens), longest):
                yield tokens[:start], tokens[start:], sampled


def _is_text(tokens: Any, start: Any) -> bool:
    """Whether a line holds token ids and a place among them; whether the target has such tokens is asked later."""
    ids = isinstance(tokens, list) and all(type(one) is int and 0 <= one < MOST for one in tokens)
    return ids and type(start) is int and start > 0
