"""Tokens to bytes: whatever the vocabulary's kind, the bytes of a text's tokens are those of the text."""

from __future__ import annotations

import json
from pathlib import Path
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


def test_a_plain_tokenizer_is_read_as_transformers_reads_it(toy_model: Path) -> None:
    """Its class is not looked for: the name that transformers saves today says which it is."""
    from transformers import AutoTokenizer

    from augury.model import tokenizer

    assert json.loads((toy_model / "tokenizer_config.json").read_text())["tokenizer_class"] in tokenizer.PLAIN
    ours, theirs = tokenizer.Tokenizer(toy_model).inner, AutoTokenizer.from_pretrained(toy_model)
    assert type(ours) is type(theirs) and ours.get_vocab() == theirs.get_vocab()
    assert ours.init_kwargs == theirs.init_kwargs and ours.chat_template == theirs.chat_template
    assert ours.backend_tokenizer.to_str() == theirs.backend_tokenizer.to_str()
