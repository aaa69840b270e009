"""A tokenizer of the `tokenizers` library, used without transformers, whose import takes longer than loading a model.

For directories whose tokenizer_config.json asks for nothing that transformers would add to tokenizer.json: those of
converted GGUF files, unless their tokenizer begins or ends texts with a token. Anything beyond encoding, decoding and
ordinary conversations is left to transformers' own tokenizer, which is loaded at that point.
"""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import Any

from augury.model.chat_template import render

PLAIN = ("PreTrainedTokenizerFast", "TokenizersBackend")  # one class: its old name, and its new
NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
OTHER_FILES = (
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "additional_chat_templates",
)
REPAIRED = 100_000  # transformers checks vocabularies larger than this for a mistake in their rules


class PlainTokenizer:
    """The part of transformers' tokenizer that the engine and the server use, under the same names."""

    def __init__(self, directory: Path, rust: Any, settings: dict[str, Any]) -> None:
        self._directory, self._tokenizer = directory, rust
        self.special_tokens_map: dict[str, str] = {name: settings[name] for name in NAMED if name in settings}
        self.chat_template: str | None = settings.get("chat_template")
        eos = self.special_tokens_map.get("eos_token")
        self.eos_token_id: int | None = None if eos is None else rust.token_to_id(eos)

    @cached_property
    def whole(self) -> Any:
        """transformers' tokenizer of the same directory."""
        from transformers import PreTrainedTokenizerFast

        return PreTrainedTokenizerFast.from_pretrained(self._directory)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # copying and pickling look these up before there is a `whole` to ask
            raise AttributeError(name)
        return getattr(self.whole, name)

    def __len__(self) -> int:
        return int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    @property
    def backend_tokenizer(self) -> Any:
        """The `tokenizers` library's tokenizer."""
        return self._tokenizer

    def get_vocab(self) -> dict[str, int]:
        """The token ids by their spelling."""
        vocabulary: dict[str, int] = self._tokenizer.get_vocab(with_added_tokens=True)
        return vocabulary

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        """The vocabulary's spelling of each token."""
        return [self._tokenizer.id_to_token(token) for token in ids]

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any:
        """The text of a conversation, for `tokenize=False`; unusual ones are left to transformers."""
        text = render(self.chat_template, self.special_tokens_map, conversation, options)
        return self.whole.apply_chat_template(conversation, **options) if text is None else text


def plain_tokenizer(directory: Path) -> PlainTokenizer | None:
    """The tokenizer of a directory, if transformers would take tokenizer.json as it is; else None."""
    file, config = directory / "tokenizer.json", directory / "tokenizer_config.json"
    if not (file.is_file() and config.is_file()) or any((directory / name).exists() for name in OTHER_FILES):
        return None
    settings = json.loads(config.read_text(encoding="utf-8"))
    if not isinstance(settings, dict) or not _asks_nothing(settings):
        return None
    from tokenizers import Tokenizer

    rust = Tokenizer.from_file(str(file))
    added = {token.content for token in rust.get_added_tokens_decoder().values()}
    changed = (rust.truncation, rust.padding, rust.post_processor) != (None, None, None)
    missing = any(settings[name] not in added for name in NAMED if name in settings)
    if changed or missing or rust.get_vocab_size() > REPAIRED:
        return None
    return PlainTokenizer(directory, rust, settings)


def _asks_nothing(settings: dict[str, Any]) -> bool:
    """Whether every setting is one that leaves tokenizer.json as it is."""
    texts = {"chat_template", *NAMED}
    expected = {"clean_up_tokenization_spaces": False, "add_bos_token": False, "add_eos_token": False}
    return settings.get("tokenizer_class") in PLAIN and all(
        isinstance(value, str)
        if name in texts
        else value is expected[name]
        if name in expected
        else name in ("tokenizer_class", "model_max_length")
        for name, value in settings.items()
    )
