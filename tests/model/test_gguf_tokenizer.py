"""The tokenizer rebuilt from a GGUF vocabulary cuts text as the model's own does."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import gguf
import pytest
from tiny_gguf import SPECIAL, write_and_convert
from transformers import AutoTokenizer

from augury.model.gguf_file import GGUFFile
from augury.model.gguf_tokenizer import build_tokenizer


@pytest.fixture
def made(tmp_path: Path) -> Any:
    """Write a tiny GGUF file and convert it: (the model written, the directory made)."""
    return partial(write_and_convert, tmp_path)


TEXTS = ["hello world", "  two  spaces\n\n\ttab", "café 日本 🦙", "1234567", "don't DON'T", "", "\r\n x"]


@pytest.mark.parametrize("pre", ["default", "gpt-2", "smollm", "llama-bpe", "qwen2", "deepseek-coder", "tekken"])
def test_every_text_comes_back(made: Any, pre: str) -> None:
    _, target = made("llama", pre=pre)
    tokenizer = AutoTokenizer.from_pretrained(target)
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def tokens(target: Path, text: str) -> list[str]:
    tokenizer = AutoTokenizer.from_pretrained(target)
    return tokenizer.convert_ids_to_tokens(tokenizer.encode(text))


def test_smollm_splits_digits_singly(made: Any) -> None:
    _, target = made("llama", pre="smollm")
    assert tokens(target, "hello 1234") == ["hello", "Ġ", "1", "2", "3", "4"]


def test_gpt2_keeps_digits_together(made: Any) -> None:
    _, target = made("llama", pre="gpt-2")
    assert tokens(target, "hello 1234") == ["hello", "Ġ", "123", "4"]


def test_llama3_takes_three_digits_and_begins_with_bos(made: Any) -> None:
    _, target = made("llama", pre="llama-bpe")
    assert tokens(target, "1231231") == ["<|im_start|>", "123", "123", "1"]


def test_qwen_composes_characters_first(made: Any) -> None:
    _, target = made("qwen2", pre="qwen2")
    assert tokens(target, "cafe\u0301") == ["c", "a", "f", "Ã©"]


def test_add_bos_and_eos_are_honoured(made: Any) -> None:
    def edit(writer: gguf.GGUFWriter) -> None:
        writer.add_add_bos_token(True)
        writer.add_add_eos_token(True)

    _, target = made("llama", edit=edit)
    assert tokens(target, "hello") == ["<|im_start|>", "hello", "<|im_end|>"]


def test_special_tokens_are_whole_and_control_tokens_can_be_skipped(made: Any) -> None:
    _, target = made("llama")
    tokenizer = AutoTokenizer.from_pretrained(target)
    ids = tokenizer.encode("<|im_start|>hello<tool><|im_end|>")
    assert tokenizer.convert_ids_to_tokens(ids) == ["<|im_start|>", "hello", "<tool>", "<|im_end|>"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "hello<tool>"
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|im_start|>", "<|im_end|>")


def test_chat_template_renders(made: Any) -> None:
    _, target = made("llama")
    tokenizer = AutoTokenizer.from_pretrained(target)
    text = tokenizer.apply_chat_template([{"role": "user", "content": "hello"}], tokenize=False)
    assert text == "<|im_start|>user\nhello<|im_end|>\n"


def sentencepiece_file(**more: Any) -> GGUFFile:
    """The vocabulary of a SentencePiece model: unknown, bos, eos, bytes, letters and pieces, best score first."""
    pieces = ["▁", "h", "e", "l", "o", "▁h", "ll", "ello", "▁hello", "el", "lo"]
    texts = ["<unk>", "<s>", "</s>", *[f"<0x{byte:02X}>" for byte in range(256)], *pieces]
    types = [2, 3, 3] + [6] * 256 + [1] * len(pieces)
    scores = [0.0] * 259 + [-100.0] * 5 + [-1.0, -2.0, -9.0, -10.0, -3.0, -4.0]
    values = {"model": "llama", "tokens": texts, "token_type": types, "scores": scores}
    values |= {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}
    return GGUFFile(Path("spm.gguf"), {f"tokenizer.ggml.{key}": value for key, value in (values | more).items()})


def test_sentencepiece_merges_by_score_and_falls_back_to_bytes() -> None:
    tokenizer = build_tokenizer(sentencepiece_file())
    # `ll` has a better score than `el` and `lo`, so `ello` is never reached
    assert tokenizer.encode("hello").tokens == ["<s>", "▁h", "e", "ll", "o"]
    assert tokenizer.encode("hé").tokens == ["<s>", "▁h", "<0xC3>", "<0xA9>"]
    for text in ("hello hello", "  hé\n🦙 "):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_sentencepiece_without_prefix_or_bos() -> None:
    tokenizer = build_tokenizer(sentencepiece_file(add_space_prefix=False, add_bos_token=False))
    assert tokenizer.encode("hello").tokens == ["h", "e", "ll", "o"]
    assert tokenizer.decode(tokenizer.encode(" hello").ids) == " hello"


VECTORS = {  # llama.cpp gives the same
    "Hello, world!": [19556, 28, 905, 17],
    "The year 2024 had 366 days.": [504, 713, 216, 34, 32, 34, 36, 761, 216, 35, 38, 38, 2009, 30],
    "    return x**2  # naïve café": [333, 1003, 1792, 828, 34, 216, 907, 15486, 46494, 37366],
    "Tabs\tand\n\n\nlines; ½ of 日本": [
        68,
        7366,
        197,
        397,
        1116,
        198,
        5110,
        43,
        216,
        16738,
        282,
        17097,
        241,
        115,
        40993,
    ],
    "<|im_start|>user\nit's 7:05<|im_end|>\n": [1, 4093, 198, 269, 506, 216, 39, 42, 32, 37, 2, 198],
}


def test_embedded_tokenizer(default_model: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(default_model)
    for text, ids in VECTORS.items():
        assert tokenizer.encode(text) == ids
        assert tokenizer.decode(ids) == text
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
    )
    assert prompt.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert tokenizer.encode(prompt)[0] == tokenizer.convert_tokens_to_ids("<|im_start|>")
    assert [tokenizer.convert_tokens_to_ids(token) for token in SPECIAL[:3]] == [0, 1, 2]
