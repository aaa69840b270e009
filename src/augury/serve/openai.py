"""Request bodies: OpenAI's fields and vLLM's, and how they become sampling parameters."""

from __future__ import annotations

import logging
import re
from difflib import get_close_matches
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr

from augury.config.sampling import MAX_LOGPROBS, MOST, SamplingParams
from augury.observe.stats import PROBE
from augury.serve.errors import ApiError, cut, field_of
from augury.serve.expected import Prediction
from augury.serve.keys import salted
from augury.serve.structure import Structured
from augury.serve.unsupported import check_unsupported

logger = logging.getLogger("augury")
MOST_CHOICES = 1024  # answers one HTTP request may ask for
MOST_MESSAGES = 1 << 14  # of a conversation; checking them blocks every other request
MOST_STOPS, LONGEST_STOP = 64, 1000  # stop strings of a request, and characters of each
BARRED = 8192  # characters of all bad words together, which are tokenized one by one
MOST_UNKNOWN, LONGEST_NAME = 64, 64  # fields that are not ours, and characters of a name that may be a misspelling
HEAVY = 4096  # entries of lists above which a request is checked in a thread
Text = Annotated[str, Field(max_length=LONGEST_STOP)]
Word = Annotated[str, Field(max_length=128)]
# Only a list's first wrong item is reported, so the search ends there.
Ids = Annotated[list[int], Field(fail_fast=True)]
Texts = Annotated[list[Text], Field(fail_fast=True)]
Words = Annotated[list[Word], Field(fail_fast=True)]
Objects = Annotated[list[dict[str, Any]], Field(fail_fast=True)]
# Fields that mean the same in SamplingParams.
DIRECT = (
    "n",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "min_tokens",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "include_stop_str_in_output",
    "logit_bias",
    "bad_words",
    "allowed_token_ids",
    "prompt_logprobs",
)
# What OpenAI's clients may send and nothing here depends on; any other unknown field may be a misspelling.
IGNORED = (
    "user",
    "store",
    "metadata",
    "service_tier",
    "verbosity",
    "prompt_cache_key",
    "safety_identifier",
    "request_id",
)


def _checked_bias(given: Any) -> Any:
    """Stop at the first entry of a map that is not a token id and a number."""
    for token, value in given.items() if isinstance(given, dict) else ():
        try:
            int(token), float(value)
        except (TypeError, ValueError, OverflowError):
            raise ValueError(f"a map from token id to a number, got {str(token)[:40]!r}: {str(value)[:40]!r}") from None
    return given


class StreamOptions(BaseModel):
    """Options of a streamed response."""

    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class Generation(Structured):
    """What completions and chats have in common; a null stands for the default."""

    model_config = ConfigDict(extra="allow")

    model: str | None = Field(None, description="A name that /v1/models lists.")
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    n: int | None = Field(None, ge=1, le=128)
    max_tokens: int | None = Field(None, ge=0, le=MOST)
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: Text | Annotated[Texts, Field(max_length=MOST_STOPS)] | None = None
    stop_token_ids: Ids | None = Field(None, max_length=256)
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    logit_bias: Annotated[dict[int, float] | None, BeforeValidator(_checked_bias)] = None
    bad_words: Words | None = Field(None, max_length=128)
    allowed_token_ids: Ids | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    return_token_ids: bool | None = False
    cache_salt: str | None = Field(None, max_length=1000, description="Caches are shared only where it is the same.")
    kv_transfer_params: dict[str, Any] | None = None
    speculative: dict[str, Any] | None = Field(
        None, description="This request's speculation: enabled, num_speculative_tokens, method, trace."
    )
    prediction: Prediction | None = Field(None, description="The text that is expected, to draft from.")

    _tenant: str = PrivateAttr("")  # set by `came_from`; no fields, so that no client can write them
    _client: str = PrivateAttr("")
    _probe: bool = PrivateAttr(False)  # sent to monitor the server
    _lora: str | None = PrivateAttr(None)  # the adapter that the request names as its model

    @property
    def heavy(self) -> bool:
        """Whether its lists are long enough to be checked off the event loop."""
        return len(self.logit_bias or ()) + len(self.allowed_token_ids or ()) > HEAVY

    def came_from(self, tenant: str, client: str = "", probe: bool = False, lora: str | None = None) -> None:
        """Say whose caches it may use, whose key it came with, whether it is a probe, and which adapter answers it."""
        self._tenant, self._client, self._probe, self._lora = tenant, client, probe, lora

    @property
    def client(self) -> str:
        """Whose key it came with."""
        return self._client

    @property
    def wants_usage(self) -> bool:
        """Whether the last chunk of a stream carries the usage."""
        return bool(self.stream_options and self.stream_options.include_usage)

    def check_common(self) -> None:
        """Refuse misspelled, unsupported and misplaced fields; other unknown fields, for other servers, are ignored."""
        if self.stream_options is not None and not self.stream:
            raise ApiError(
                400, "stream_options is only for streams: say stream: true, or leave it out.", "stream_options"
            )
        if (barred := sum(map(len, self.bad_words or ()))) > BARRED:
            raise ApiError(400, f"bad_words: {barred} characters; at most {BARRED} in all.", "bad_words")
        unknown, fields = self.model_extra or {}, list(type(self).model_fields)
        check_unsupported(unknown)
        if len(unknown) > MOST_UNKNOWN:
            first = cut(next(iter(unknown)), LONGEST_NAME)
            why = f"{len(unknown)} fields are not known here, {first!r} the first; at most {MOST_UNKNOWN} are ignored."
            raise ApiError(400, why, first)
        for name in unknown:
            close = get_close_matches(name, fields, n=1, cutoff=0.8) if len(name) <= LONGEST_NAME else []
            if close and name not in IGNORED:
                raise ApiError(400, f"{name!r} is not a field; did you mean {close[0]!r}?", name)
        if unknown:
            logger.debug("fields ignored: %s", ", ".join(name[:LONGEST_NAME] for name in sorted(unknown)))

    def parameters(self, **special: Any) -> dict[str, Any]:
        """The arguments of SamplingParams, checked; `special` holds what the two kinds of request say differently."""
        given = {name: value for name in DIRECT if (value := getattr(self, name)) is not None}
        extra: dict[str, Any] = {
            "cache_salt": salted(self._tenant, self.cache_salt),
            "kv_transfer_params": self.kv_transfer_params,
        }
        extra = {**extra, "speculative": self.speculative, PROBE: self._probe or None, "lora": self._lora}
        if extra := {name: value for name, value in extra.items() if value is not None}:
            given["extra_args"] = extra
        if (structure := self.structure()) is not None:
            given["structured_outputs"] = structure
        given |= special
        try:
            SamplingParams(**given)
        except (ValueError, TypeError, OverflowError) as error:
            raise self.refusal(str(error)) from None
        return given

    def refusal(self, why: str) -> ApiError:
        """The 400 for a reason that names one of our fields; a structure is named after the field that asked for it."""
        if self._lora is not None and why.startswith(f"lora {self._lora!r} is not loaded"):  # since it was checked
            return ApiError(
                404, f"the model {cut(self._lora, 100)!r} was unloaded just now.", "model", "model_not_found"
            )
        why = re.sub(r"^structured_outputs(\.\w+)?", lambda found: self.structure_field() or found.group(), why)
        return ApiError(400, why, field_of(why, type(self).model_fields))


class CompletionRequest(Generation):
    """POST /v1/completions."""

    prompt: str | Annotated[list[str], Field(fail_fast=True)] | Ids | Annotated[list[Ids], Field(fail_fast=True)]
    echo: bool | None = False
    logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    best_of: int | None = None
    suffix: str | None = None
    add_special_tokens: bool | None = True

    def check(self) -> None:
        """Refuse what cannot be done here."""
        self.check_common()
        for name in ("tools", "tool_choice"):
            if (self.model_extra or {}).get(name) not in (None, [], "none", "auto"):
                raise ApiError(400, f"{name} is for /v1/chat/completions; leave it out here.", name)
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise ApiError(400, f"best_of={self.best_of} is not supported; leave it out, or ask for n.", "best_of")
        if self.suffix:
            raise ApiError(400, "suffix is not supported; leave it out.", "suffix")
        if len(self.prompts) * (self.n or 1) > MOST_CHOICES:
            raise ApiError(400, f"prompt: at most {MOST_CHOICES} answers in one request, prompts times n.", "prompt")

    @property
    def prompts(self) -> list[str | list[int]]:
        """Each prompt, a text or token ids."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        single = bool(self.prompt) and isinstance(self.prompt[0], int)
        return [self.prompt] if single else list(self.prompt)  # type: ignore[list-item, arg-type]


class ChatMessage(BaseModel):
    """One message; content is a text or a list of text parts."""

    model_config = ConfigDict(extra="allow")

    # A closed list, since templates write the role between their own special tokens.
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | Objects | None = None
    name: str | None = None
    tool_calls: Objects | None = None
    tool_call_id: str | None = None


class ChatRequest(Generation):
    """POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Field(fail_fast=True)] = Field(min_length=1, max_length=MOST_MESSAGES)
    logprobs: bool | None = False
    top_logprobs: int | None = Field(None, ge=0, le=20)
    max_completion_tokens: int | None = Field(None, ge=1, le=MOST)
    tools: Objects | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    include_reasoning: bool | None = True
    add_generation_prompt: bool | None = True
    continue_final_message: bool | None = False
    add_special_tokens: bool | None = False
    reasoning_effort: str | None = Field(None, max_length=100, description="For the chat template.")
    chat_template_kwargs: dict[str, Any] | None = None
    chat_template: str | None = None

    def check(self) -> None:
        """Refuse what cannot be done here."""
        self.check_common()
        if self.chat_template is not None:
            raise ApiError(400, "chat_template: only the model's own template is used; leave it out.", "chat_template")
        if self.top_logprobs is not None and not self.logprobs:
            raise ApiError(400, "top_logprobs needs logprobs: true.", "top_logprobs")
        if (
            self.continue_final_message
            and self.add_generation_prompt
            and "add_generation_prompt" in self.model_fields_set
        ):
            raise ApiError(
                400, "continue_final_message and add_generation_prompt exclude each other.", "continue_final_message"
            )

    @property
    def template_options(self) -> dict[str, Any]:
        """Variables of the chat template besides messages and tools."""
        effort = {"reasoning_effort": self.reasoning_effort} if self.reasoning_effort else {}
        return {**effort, **(self.chat_template_kwargs or {})}

    def structure_field(self) -> str | None:
        """The field that asks for a structure: `tools`, where a call is forced."""
        return super().structure_field() or ("tools" if self.tools else None)
