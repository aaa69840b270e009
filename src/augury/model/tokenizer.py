"""Text to tokens and back, chat templates, and the tokens that end an answer."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

from augury.config.errors import ConfigError
from augury.model.configurations import import_lightly
from augury.model.errors import ModelError, one_line
from augury.model.plain_tokenizer import PLAIN, plain_tokenizer
from augury.model.plausible import check_plausible
from augury.model.token_bytes import TokenBytes


class Tokenizer:
    """A thin wrapper over transformers' tokenizer or PlainTokenizer, with the decoder that runs for every token."""

    def __init__(self, directory: Path) -> None:
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # its thread pool and ours would fight over the cores
        check_plausible(directory)
        try:
            self.inner: Any = _load(directory)
        except ImportError:
            raise
        except Exception as error:  # the library raises whatever a strange file leads it to
            raise ModelError(f"no usable tokenizer in {directory}: {one_line(error)}") from None
        self.eos_ids = _eos_ids(directory, self.inner)

    def __len__(self) -> int:
        return len(self.inner)

    def whole(self) -> Any:
        """transformers' own tokenizer; a caller may change it, so it is the one in use from then on."""
        self.inner = getattr(self.inner, "whole", self.inner)
        return self.inner

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Token ids of a text, with the special tokens the model expects around it."""
        try:
            ids: list[int] = self.inner.encode(text, add_special_tokens=special)
        except TypeError:  # the tokenizer's way of saying that this is no Unicode text
            raise ModelError("the text holds a lone surrogate, which no encoding can write; remove it.") from None
        return ids

    def decoder(self, skip_special: bool) -> Callable[[list[int]], str]:
        """A function that turns token ids into text."""
        rust = getattr(self.inner, "_tokenizer", None)
        if rust is not None:  # skips several Python layers
            return lambda ids: rust.decode(ids, skip_special_tokens=skip_special)
        return lambda ids: self.inner.decode(ids, skip_special_tokens=skip_special)

    @cached_property
    def bytes(self) -> TokenBytes:
        """The bytes of single tokens."""
        return TokenBytes(self.inner)

    def chat(self, messages: list[dict[str, Any]], **options: Any) -> list[int]:
        """Token ids of a conversation, by the model's own chat template."""
        if not options.get("chat_template") and not self.inner.chat_template:
            raise ModelError("this model has no chat template; use generate() with a plain prompt, or pass one.")
        text = self.inner.apply_chat_template(messages, tokenize=False, **options)
        return self.encode(text, special=False)

    def bad_word_ids(self, words: list[str]) -> list[list[int]]:
        """Token sequences that spell each word, at the start of a text and after a space, as vLLM bans them.

        White space alone is banned as it is: stripping the leading space would leave nothing.
        """
        found = []
        for word in words:
            bare = word.lstrip()
            alone = self.encode(bare or word, special=False)
            if not alone:
                raise ConfigError(f"bad_words must be texts that the tokenizer has tokens for, got {word!r}.")
            found.append(alone)
            spaced = self.encode(" " + bare, special=False) if bare else alone
            if spaced[0] != alone[0] and len(spaced) == len(alone):
                found.append(spaced)
        return found


class NoTokenizer(Tokenizer):
    """For `skip_tokenizer_init`: prompts and answers are token ids, and all text is empty."""

    def __init__(self, directory: Path) -> None:
        self.inner = None
        self.eos_ids = _eos_ids(directory, None)

    def __len__(self) -> int:
        return 0

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Raise a ModelError."""
        raise ModelError("skip_tokenizer_init=True leaves no tokenizer to read texts with; give prompt_token_ids.")

    def decoder(self, skip_special: bool) -> Callable[[list[int]], str]:
        """A function that returns the empty text."""
        return lambda ids: ""

    def chat(self, messages: list[dict[str, Any]], **options: Any) -> list[int]:
        """Raise a ModelError."""
        return self.encode("")


def _load(directory: Path) -> Any:
    """The tokenizer of a directory; AutoTokenizer's search for a class takes longest, so known classes skip it."""
    if (plain := plain_tokenizer(directory)) is not None:
        return plain
    settings = directory / "tokenizer_config.json"
    if settings.is_file() and json.loads(settings.read_text()).get("tokenizer_class") in PLAIN:
        from transformers import PreTrainedTokenizerFast

        return PreTrainedTokenizerFast.from_pretrained(directory)
    import_lightly()
    from transformers import AutoTokenizer

    # Otherwise transformers asks on the terminal whether the checkpoint's own code may run.
    return AutoTokenizer.from_pretrained(directory, trust_remote_code=False)


def _eos_ids(directory: Path, inner: Any) -> frozenset[int]:
    """End-of-text ids: generation_config.json names them all, config.json and the tokenizer often just one."""
    ids: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        path = directory / name
        if path.exists():
            value = json.loads(path.read_text()).get("eos_token_id")
            ids.update(one for one in (value if isinstance(value, list) else [value]) if type(one) is int)
    if inner is not None and inner.eos_token_id is not None:
        ids.add(inner.eos_token_id)
    return frozenset(ids)
