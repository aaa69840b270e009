"""Chooses the mask token: one that no text contains, so that its embedding is free to be trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from augury.model.tokenizer import Tokenizer

NAMED = ("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id")


def spare_token(directory: Path, vocabulary: int) -> int:
    """A row of the embedding after the tokenizer's last token; else the last special token that the chat template does
    not write and that is no bos, eos, pad or unk; else the last token other than those, which is a rare one."""
    tokenizer = Tokenizer(directory)
    inner: Any = tokenizer.inner
    if max(inner.get_vocab().values(), default=0) < vocabulary - 1:
        return vocabulary - 1
    named = {getattr(inner, name, None) for name in NAMED} | set(tokenizer.eos_ids)
    template = str(inner.chat_template or "")
    spare = [
        number
        for number, token in inner.added_tokens_decoder.items()
        if token.special and number not in named and token.content not in template
    ]
    return max(spare) if spare else max(set(range(vocabulary)) - named)
