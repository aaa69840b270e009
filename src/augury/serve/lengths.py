"""How much text a context can hold at most, so that what can never fit is refused before it is tokenized."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from augury.config.prediction import KEY as PREDICTION
from augury.serve.errors import ApiError

SWALLOWED = 1024  # bytes a token may stand for where the tokenizer drops or folds text before it cuts it
SPARE = 4  # a template may leave out parts of what it is given, and /detokenize may be asked about more than fits
LEAST = 1 << 20  # bytes of text, or token ids, that /tokenize and /detokenize take from anyone
A_TOKEN = 8  # bytes, generously: /tokenize takes what often fills the context, not what may if all tokens are long ones
SPLITTERS = {"Whitespace", "WhitespaceSplit", "BertPreTokenizer", "CharDelimiterSplit"}  # drop what they split at


class Lengths:
    """The limits of one tokenizer and one context."""

    def __init__(self, inner: Any, context: int) -> None:
        self.context = context
        self.token = longest_token(inner)
        self.text = context * self.token  # bytes that no prompt that fits exceeds
        self.tokenized = max(LEAST, A_TOKEN * context)
        self.detokenized = max(LEAST, SPARE * context)

    def check_text(self, text: str, param: str) -> None:
        """Refuse a text that has more tokens than the context, however it is tokenized."""
        size = in_bytes([text])
        if size > self.text:
            raise self._too_long(f"at least {-(-size // self.token)} tokens ({size} bytes)", param)

    def check_tokens(self, tokens: list[int], param: str) -> None:
        """Refuse token ids that do not fit; the engine would too, but they need not be sent there."""
        if len(tokens) >= self.context:
            raise self._too_long(f"{len(tokens)} tokens", param)

    def check_given(self, size: int) -> None:
        """Refuse a conversation that no template could make short enough."""
        if size > SPARE * self.text:
            least = -(-size // self.token)
            raise self._too_long(f"at least {least} tokens ({size} bytes) before the template is applied", "messages")

    def check_expected(self, size: int) -> None:
        """Refuse an expected text that is longer than any answer."""
        if size > self.text:
            why = f"{PREDICTION} has at least {-(-size // self.token)} tokens ({size} bytes) but max_model_len is "
            raise ApiError(400, f"{why}{self.context}; shorten it.", PREDICTION)

    def check_tokenized(self, size: int, param: str) -> None:
        """Refuse what /tokenize would work on for too long."""
        if size > self.tokenized:
            raise ApiError(400, f"{param}: {size} bytes of text; /tokenize takes at most {self.tokenized}.", param)

    def check_detokenized(self, tokens: list[int]) -> None:
        """Refuse what /detokenize would work on for too long."""
        if len(tokens) > self.detokenized:
            why = f"tokens: there are {len(tokens)}; /detokenize takes at most {self.detokenized}."
            raise ApiError(400, why, "tokens")

    def _too_long(self, what: str, param: str) -> ApiError:
        why = (
            f"the prompt has {what} but max_model_len is {self.context}, which must also hold the answer; "
            "shorten the prompt or raise max_model_len."
        )
        return ApiError(400, why, param)


def in_bytes(texts: Iterable[str]) -> int:
    """The length of texts in UTF-8; lone surrogates are counted here and refused elsewhere."""
    return sum(len(s) if s.isascii() else len(s.encode("utf-8", "surrogatepass")) for s in texts)


@lru_cache(maxsize=1)
def longest_token(inner: Any) -> int:
    """The most bytes of text that one token stands for.

    A byte-level vocabulary writes a byte as one character, of one or two bytes, so its spelling is never shorter than
    its text. Where text is changed first, or unknown words become one token, the figure is a generous guess.
    """
    longest = max((len(token.encode()) for token in inner.get_vocab()), default=1)
    rust = getattr(inner, "_tokenizer", None)
    if rust is not None and _keeps_all(json.loads(rust.to_str())):
        return longest
    return max(SPARE * longest, SWALLOWED)


def _keeps_all(written: dict[str, Any]) -> bool:
    """Whether every byte of a text is in some token: bytes, nothing normalized, no space swallowed by a token."""
    model, added = written.get("model", {}), written.get("added_tokens", [])
    before = written.get("pre_tokenizer") or {}
    steps = before.get("pretokenizers", [before])
    byte_level = any(step.get("type") == "ByteLevel" for step in steps)
    removing = any(step.get("behavior") == "Removed" or step.get("type") in SPLITTERS for step in steps)
    swallowing = any(token.get("lstrip") or token.get("rstrip") for token in added)
    plain = model.get("type") == "BPE" and written.get("normalizer") is None
    return plain and byte_level and not removing and not swallowing
