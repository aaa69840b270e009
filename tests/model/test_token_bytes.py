"""Tokens to bytes: whatever the vocabulary's kind, the bytes of a text's tokens are those of the text."""

from __future__ import annotations

from typing import Any

from conftest import byte_tokenizer
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers
from transformers import PreTrainedTokenizerFast

from augury.model.token_bytes import TokenBytes


def falling_back() -> Any:
    """A few pieces with spaces as SentencePiece writes them, and a token for each byte."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "▁a"]
    model = models.BPE({p: i for i, p in enumerate(pieces)}, [("▁", "a")], unk_token="<unk>", byte_fallback=True)
    inner = Tokenizer(model)
    inner.normalizer = normalizers.Replace(" ", "▁")
    inner.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=inner)


KINDS: list[Any] = [byte_tokenizer(), falling_back()]
TEXTS = st.text(st.sampled_from("ab €é😀\n\x00") | st.characters(exclude_categories=["Cs"], exclude_characters="▁"))


@given(TEXTS)
def test_the_bytes_of_the_tokens_are_those_of_the_text(text: str) -> None:
    for tokenizer in KINDS:
        table = TokenBytes(tokenizer)
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert b"".join(table.of(i, tokenizer.decode([i])) for i in ids) == text.encode()


def test_added_tokens_are_their_text() -> None:
    tokenizer = KINDS[0]
    assert TokenBytes(tokenizer).of(tokenizer.eos_token_id, "<eos>") == b"<eos>"
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["é"])  # type: ignore[attr-defined]
    [added] = tokenizer.encode("é", add_special_tokens=False)  # type: ignore[attr-defined]
    assert TokenBytes(tokenizer).of(added, "é") == "é".encode()  # not the one byte that this letter stands for
