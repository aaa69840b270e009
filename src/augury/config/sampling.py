"""SamplingParams: how a request wants its tokens drawn, by vLLM's names, defaults and ranges."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import Any

from augury.config.errors import ConfigError, unknown_keyword
from augury.config.structured import StructuredOutputsParams

MAX_LOGPROBS = 20  # vLLM's default for `max_logprobs`
MOST = 2**31 - 1  # tokens, and token ids: the device counts them in int32
LARGEST = 1e38  # the device computes in float32
GREEDY_BELOW = 1e-5  # temperatures under this are greedy, as in vLLM

# The lowest and the highest value of each, and the wording for errors.
COUNTS: dict[str, tuple[float, float, str]] = {
    "n": (1, math.inf, "an integer of at least 1"),
    "max_tokens": (1, MOST, f"an integer from 1 to {MOST} (or None for no limit)"),
    "min_tokens": (0, MOST, "an integer >= 0"),
    "top_k": (0, MOST, "0 or -1 (off), or at least 1"),
    "seed": (-(2**63), 2**63 - 1, "a 64-bit integer or None"),
    "logprobs": (0, MAX_LOGPROBS, f"None or an integer from 0 to {MAX_LOGPROBS} (-1, all of them, is not supported)"),
    "prompt_logprobs": (
        0,
        MAX_LOGPROBS,
        f"None or an integer from 0 to {MAX_LOGPROBS} (-1, all of them, is not supported)",
    ),
}
NUMBERS: dict[str, tuple[float, float, str]] = {
    "temperature": (0, LARGEST, "a number >= 0 (0 is greedy)"),
    "top_p": (1e-12, 1, "in (0, 1]"),
    "min_p": (0, 1, "in [0, 1]"),
    "presence_penalty": (-2, 2, "in [-2, 2]"),
    "frequency_penalty": (-2, 2, "in [-2, 2]"),
    "repetition_penalty": (1e-12, LARGEST, "a number > 0 (1 is off)"),
}
OPTIONAL = ("max_tokens", "seed", "logprobs", "prompt_logprobs")


def _need(condition: bool, name: str, value: object, rule: str) -> None:
    if not condition:
        raise ConfigError(f"{name} must be {rule}, got {value!r}.")


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_token(value: object) -> bool:
    """Whether some vocabulary could have this id; whether the model's has it is checked later."""
    return _is_int(value) and -MOST <= value <= MOST  # type: ignore[operator]


def _is_number(value: object) -> bool:
    if _is_int(value):
        return -LARGEST <= value <= LARGEST  # type: ignore[operator]  # compared exactly: it may not fit a float
    return isinstance(value, float) and math.isfinite(value)


def _as_list(value: Any) -> list[Any]:
    return [] if value is None else [value] if isinstance(value, str) else list(value)


class RequestOutputKind(Enum):
    """What each output of a stream holds: all so far, what is new, or nothing before the end."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


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
    seed: int | None = field(default=None, metadata={"help": "Seed: the same seed gives the same sampled text."})
    stop: str | list[str] | None = field(default=None, metadata={"help": "End before this text; may be repeated."})
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = field(
        default=16, metadata={"help": "Maximum number of tokens to generate."}
    )  # None: no limit
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
    output_kind: RequestOutputKind = (
        RequestOutputKind.CUMULATIVE
    )  # of augury.compat's engines; generate() gives the end

    def __init__(self, **given: Any) -> None:
        for f in fields(self):
            setattr(self, f.name, given.pop(f.name, f.default))
        for name in given:
            raise unknown_keyword(name, (f.name for f in fields(self)), "SamplingParams")
        self._normalise()
        self._check_ranges()
        self._check_tokens()

    def _normalise(self) -> None:
        self.stop = _as_list(self.stop)
        self.stop_token_ids = _as_list(self.stop_token_ids)
        self.bad_words = _as_list(self.bad_words)
        self.structured_outputs = StructuredOutputsParams.of(self.structured_outputs)
        try:
            self.output_kind = RequestOutputKind(self.output_kind)
        except ValueError:
            kinds = ", ".join(f"RequestOutputKind.{kind.name}" for kind in RequestOutputKind)
            raise ConfigError(f"output_kind must be one of {kinds}, got {self.output_kind!r}.") from None
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is True:  # vLLM takes True for 1
                setattr(self, name, 1)
        if self.top_k == -1:
            self.top_k = 0
        if _is_number(self.temperature) and 0 <= self.temperature < GREEDY_BELOW:
            self.temperature = 0.0

    def _check_ranges(self) -> None:
        for is_kind, ranges in ((_is_int, COUNTS), (_is_number, NUMBERS)):
            for name, (low, high, rule) in ranges.items():
                value = getattr(self, name)
                left_out = value is None and name in OPTIONAL
                _need(left_out or (is_kind(value) and low <= value <= high), name, value, rule)
        if self.max_tokens is not None:
            fits = self.min_tokens <= self.max_tokens
            _need(fits, "min_tokens", self.min_tokens, f"at most max_tokens={self.max_tokens}")

    def _check_tokens(self) -> None:
        for name in ("stop", "bad_words"):
            words = getattr(self, name)
            _need(all(isinstance(word, str) and word for word in words), name, words, "non-empty strings")
        if self.stop and not self.detokenize:
            raise ConfigError("stop needs text to look at: set detokenize=True, or use stop_token_ids.")
        _need(all(map(_is_token, self.stop_token_ids or [])), "stop_token_ids", self.stop_token_ids, "token ids")
        ids, bias, rule = self.allowed_token_ids, self.logit_bias, "a map from token id to a number"
        if ids is not None:
            several = isinstance(ids, Sequence) and len(ids) > 0 and all(map(_is_token, ids))
            _need(several, "allowed_token_ids", ids, "a non-empty list of token ids")
        if bias is not None:
            _need(isinstance(bias, dict) and all(map(_is_number, bias.values())), "logit_bias", bias, rule)
            # JSON has string keys; vLLM takes them too, and clamps the values.
            self.logit_bias = {int(k): min(100.0, max(-100.0, float(v))) for k, v in bias.items()}
            _need(all(map(_is_token, self.logit_bias)), "logit_bias", bias, rule)

    def check_vocabulary(self, size: int) -> None:
        """Refuse token ids the model does not have."""
        for name in ("stop_token_ids", "allowed_token_ids", "logit_bias"):
            wrong = next((token for token in getattr(self, name) or () if not 0 <= token < size), None)
            _need(wrong is None, name, wrong, f"a token id from 0 to {size - 1}")

    @property
    def greedy(self) -> bool:
        """Whether tokens are the most likely ones, with no noise."""
        return self.temperature == 0.0

    @property
    def penalized(self) -> bool:
        """Whether the history of a token changes its score."""
        return self.presence_penalty != 0 or self.frequency_penalty != 0 or self.repetition_penalty != 1

    @property
    def reads_all_logits(self) -> bool:
        """Whether sampling needs all logits, not only the best of each vocabulary shard."""
        filtered = self.top_k > 0 or self.top_p < 1 or self.min_p > 0
        return self.edits_logits or (filtered and not self.greedy)

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
