"""SamplingParams: how a request wants its tokens drawn, by vLLM's names, defaults and ranges."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from augury.config.errors import ConfigError, unknown_keyword
from augury.config.structured import StructuredOutputsParams

MAX_LOGPROBS = 20  # vLLM's default for `max_logprobs`
MOST = 2**31 - 1  # tokens, and token ids: the device counts them in int32
LARGEST = 1e38  # the device computes in float32
GREEDY_BELOW = 1e-5  # temperatures under this are greedy, as in vLLM


def _need(condition: bool, name: str, value: object, rule: str) -> None:
    if not condition:
        raise ConfigError(f"{name} must be {rule}, got {value!r}.")


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_token(value: object) -> bool:
    """Whether some vocabulary could have it; whether the model's has is asked later."""
    return _is_int(value) and -MOST <= value <= MOST  # type: ignore[operator]


def _is_number(value: object) -> bool:
    if _is_int(value):
        return -LARGEST <= value <= LARGEST  # type: ignore[operator]  # compared exactly: it may not fit a float
    return isinstance(value, float) and math.isfinite(value)


def _as_list(value: Any) -> list[Any]:
    return [] if value is None else [value] if isinstance(value, str) else list(value)


@dataclass(init=False)
class SamplingParams:
    """One request's sampling parameters; every one of them works with speculation, at every drafted position."""

    n: int = field(default=1, metadata={"help": "Answers for each prompt."})
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = field(default=1.0, metadata={"help": "0 takes the most likely token."})
    top_p: float = field(default=1.0, metadata={"help": "Sample from the tokens that make up this probability."})
    top_k: int = field(default=0, metadata={"help": "Sample from this many tokens; 0 or -1 for all."})
    min_p: float = field(default=0.0, metadata={"help": "Sample from tokens this likely, relative to the likeliest."})
    seed: int | None = field(default=None, metadata={"help": "Makes sampling repeatable."})
    stop: str | list[str] | None = field(default=None, metadata={"help": "End before this text; may be repeated."})
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = field(default=16, metadata={"help": "Most tokens to generate."})  # None: no limit
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    logit_bias: dict[int, float] | None = None
    bad_words: list[str] | None = None
    allowed_token_ids: list[int] | None = None
    structured_outputs: StructuredOutputsParams | None = None  # a dictionary of its values will do
    extra_args: dict[str, Any] | None = field(default=None)

    def __init__(self, **given: Any) -> None:
        for f in fields(self):
            setattr(self, f.name, given.pop(f.name, f.default))
        for name in given:
            raise unknown_keyword(name, (f.name for f in fields(self)), "SamplingParams")
        self._normalise()
        self._check_counts()
        self._check_numbers()
        self._check_tokens()

    def _normalise(self) -> None:
        self.stop = _as_list(self.stop)
        self.stop_token_ids = _as_list(self.stop_token_ids)
        self.bad_words = _as_list(self.bad_words)
        self.structured_outputs = StructuredOutputsParams.of(self.structured_outputs)
        if self.top_k == -1:
            self.top_k = 0
        if _is_number(self.temperature) and 0 <= self.temperature < GREEDY_BELOW:
            self.temperature = 0.0

    def _check_counts(self) -> None:
        _need(_is_int(self.n) and self.n >= 1, "n", self.n, "an integer of at least 1")
        if self.max_tokens is not None:
            _need(
                _is_int(self.max_tokens) and 1 <= self.max_tokens <= MOST,
                "max_tokens",
                self.max_tokens,
                f"an integer from 1 to {MOST} (or None for no limit)",
            )
            _need(
                _is_int(self.min_tokens) and self.min_tokens <= self.max_tokens,
                "min_tokens",
                self.min_tokens,
                f"at most max_tokens={self.max_tokens}",
            )
        _need(
            _is_int(self.min_tokens) and 0 <= self.min_tokens <= MOST, "min_tokens", self.min_tokens, "an integer >= 0"
        )
        _need(_is_int(self.top_k) and 0 <= self.top_k <= MOST, "top_k", self.top_k, "0 or -1 (off), or at least 1")
        if self.seed is not None:
            _need(_is_int(self.seed) and -(2**63) <= self.seed < 2**63, "seed", self.seed, "a 64-bit integer or None")
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            if value is True:  # vLLM takes True for 1
                setattr(self, name, 1)
            elif value is not None:
                _need(
                    _is_int(value) and 0 <= value <= MAX_LOGPROBS,
                    name,
                    value,
                    f"None or an integer from 0 to {MAX_LOGPROBS}",
                )

    def _check_numbers(self) -> None:
        def within(name: str, low: float, high: float, rule: str) -> None:
            value = getattr(self, name)
            _need(_is_number(value) and low <= value <= high, name, value, rule)

        within("temperature", 0, LARGEST, "a number >= 0 (0 is greedy)")
        within("top_p", 1e-12, 1, "in (0, 1]")
        within("min_p", 0, 1, "in [0, 1]")
        within("presence_penalty", -2, 2, "in [-2, 2]")
        within("frequency_penalty", -2, 2, "in [-2, 2]")
        within("repetition_penalty", 1e-12, LARGEST, "a number > 0 (1 is off)")

    def _check_tokens(self) -> None:
        _need(all(isinstance(s, str) and s for s in self.stop or []), "stop", self.stop, "non-empty strings")
        if self.stop and not self.detokenize:
            raise ConfigError("stop needs text to look at: set detokenize=True, or use stop_token_ids.")
        _need(all(map(_is_token, self.stop_token_ids or [])), "stop_token_ids", self.stop_token_ids, "token ids")
        _need(
            all(isinstance(s, str) and s for s in self.bad_words or []),
            "bad_words",
            self.bad_words,
            "non-empty strings",
        )
        if self.allowed_token_ids is not None:
            ids = self.allowed_token_ids
            _need(
                isinstance(ids, Sequence) and len(ids) > 0 and all(map(_is_token, ids)),
                "allowed_token_ids",
                ids,
                "a non-empty list of token ids",
            )
        if self.logit_bias is not None:
            bias = self.logit_bias
            _need(
                isinstance(bias, dict) and all(_is_number(v) for v in bias.values()),
                "logit_bias",
                bias,
                "a map from token id to a number",
            )
            # JSON has string keys; vLLM takes them too, and clamps the values.
            self.logit_bias = {int(k): min(100.0, max(-100.0, float(v))) for k, v in bias.items()}
            _need(all(map(_is_token, self.logit_bias)), "logit_bias", bias, "a map from token id to a number")

    def check_vocabulary(self, size: int) -> None:
        """Refuse token ids the model does not have."""
        for name in ("stop_token_ids", "allowed_token_ids", "logit_bias"):
            for token in getattr(self, name) or ():
                _need(0 <= token < size, name, token, f"a token id from 0 to {size - 1}")

    @property
    def greedy(self) -> bool:
        """Whether tokens are the most likely ones, with no noise."""
        return self.temperature == 0.0

    @property
    def penalized(self) -> bool:
        """Whether the history of a token changes its score."""
        return self.presence_penalty != 0 or self.frequency_penalty != 0 or self.repetition_penalty != 1

    @property
    def edits_logits(self) -> bool:
        """Whether anything but temperature and truncation changes the scores."""
        return bool(
            self.penalized
            or self.logit_bias
            or self.allowed_token_ids
            or self.bad_words
            or self.min_tokens > 0
            or self.structured_outputs
        )

    def clone(self, **changes: Any) -> SamplingParams:
        """A copy with some values changed."""
        return replace(self, **changes)
