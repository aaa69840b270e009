"""vllm.engine.llm_engine: the engine stepped by hand. Add requests, step, and take the outputs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from augury.compat.engine.arg_utils import EngineArgs
from augury.config.errors import ConfigError
from augury.config.sampling import RequestOutputKind, SamplingParams
from augury.engine.llm import LLM, Prompt
from augury.engine.outputs import RequestOutput
from augury.engine.request import Request
from augury.observe.stats import Metric


@dataclass(slots=True)
class _Asked:
    """One prompt and its unfinished answers."""

    name: str
    prompt: str | None
    tokens: list[int]
    requests: list[Request]
    kind: RequestOutputKind
    told: dict[int, tuple[int, int]] = field(default_factory=dict)  # tokens and characters given so far, by answer


class LLMEngine:
    """vLLM's synchronous engine over an `LLM`."""

    def __init__(self, llm: LLM) -> None:
        self.llm = llm
        self._asked: dict[str, _Asked] = {}
        self._owner: dict[Request, _Asked] = {}

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs, **_: Any) -> LLMEngine:
        """An engine with these arguments; what vLLM passes in addition (usage_context, ...) is ignored."""
        return cls(LLM(**engine_args.arguments()))

    def add_request(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams | None = None,
        arrival_time: float | None = None,
        lora_request: Any = None,
    ) -> None:
        """Queue a prompt; a ConfigError says what is wrong with it."""
        if request_id in self._asked:
            raise ConfigError(f"request_id {request_id!r} is in use by a request that has not ended.")
        params = params or SamplingParams()
        tokens, text = self.llm._tokens_of(prompt)
        requests = self.llm._requests(request_id, tokens, params, lora_request)
        asked = _Asked(request_id, text, tokens, requests, params.output_kind)
        self._asked[request_id] = asked
        for request in requests:
            self._owner[request] = asked
            self.llm.engine.add(request)

    def step(self) -> list[RequestOutput]:
        """Run one step; returns an output, of the `output_kind` asked for, for each prompt that got something."""
        touched: dict[str, _Asked] = {}
        for update in self.llm._step():
            if (asked := self._owner.get(update.request)) is not None:
                touched[asked.name] = asked
        return [made for asked in touched.values() if (made := self._output(asked)) is not None]

    def has_unfinished_requests(self) -> bool:
        """Whether a request has not ended."""
        return bool(self._asked)

    def get_num_unfinished_requests(self) -> int:
        """How many requests have not ended."""
        return len(self._asked)

    def abort_request(self, request_ids: str | list[str]) -> None:
        """Stop requests; those that have ended, or never existed, are ignored, as in vLLM."""
        for name in [request_ids] if isinstance(request_ids, str) else request_ids:
            if (asked := self._asked.get(name)) is not None:
                for request in asked.requests:
                    self.llm.engine.abort(request)
                self._forget(asked)

    def get_tokenizer(self) -> Any:
        """transformers' tokenizer."""
        return self.llm.get_tokenizer()

    def get_metrics(self) -> list[Metric]:
        """Counters and gauges since the start."""
        return self.llm.get_metrics()

    def _output(self, asked: _Asked) -> RequestOutput | None:
        finished = all(request.finish_reason is not None for request in asked.requests)
        if asked.kind is RequestOutputKind.FINAL_ONLY and not finished:
            return None
        made = self.llm._output(0, asked.prompt, asked.tokens, asked.requests, None)
        made = replace(made, request_id=asked.name, finished=finished)
        if asked.kind is RequestOutputKind.DELTA:
            self._cut(asked, made)
        if finished:
            self._forget(asked)
        return made

    def _cut(self, asked: _Asked, made: RequestOutput) -> None:
        """Leave only what is new since the last output."""
        for answer in made.outputs:
            tokens, characters = asked.told.get(answer.index, (0, 0))
            asked.told[answer.index] = len(answer.token_ids), len(answer.text)
            answer.token_ids, answer.text = list(answer.token_ids[tokens:]), answer.text[characters:]
            answer.from_draft = answer.from_draft[tokens:]
            if answer.logprobs is not None:
                answer.logprobs = answer.logprobs[tokens:]

    def _forget(self, asked: _Asked) -> None:
        del self._asked[asked.name]
        for request in asked.requests:
            self._owner.pop(request, None)
