"""LLM: vLLM's offline interface. A script written for vLLM runs with only its import changed."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from augury.config.engine import EngineConfig
from augury.config.errors import ConfigError
from augury.config.facts import read_facts
from augury.config.lora import LoRARequest
from augury.config.sampling import SamplingParams
from augury.engine.build import build_engine
from augury.engine.commit import Update
from augury.engine.divided import join
from augury.engine.engine import Engine
from augury.engine.intake import Intake
from augury.engine.loras import Loras as LoadedLoras
from augury.engine.outputs import RequestOutput, completion, refused
from augury.engine.progress_bar import progress_bar
from augury.engine.request import Request
from augury.model.store import resolve
from augury.model.target import Target
from augury.model.tokenizer import NoTokenizer, Tokenizer
from augury.observe.stats import Metric, as_metrics

Prompt = str | list[int] | dict[str, Any]
Messages = list[dict[str, Any]]
Loras = LoRARequest | Sequence[LoRARequest | None] | None
LOADED_BY = "dtype model_impl load_format max_model_len exact enable_lora quantization cpu_arithmetic"


class LLM:
    """A model, ready to generate: `LLM("default").generate("Hello")`."""

    def __init__(
        self, model: str | os.PathLike[str] = "default", *, weights_of: LLM | None = None, **arguments: Any
    ) -> None:
        """Takes vLLM's arguments, and one of ours: `weights_of`, another LLM of the same model whose weights are shared
        instead of loaded again."""
        self.config = EngineConfig.parse(model=os.fspath(model), **arguments)
        self.model_path: Path = resolve(self.config.model, weights=self.config.load_format != "dummy")
        self.config.check_speculation(read_facts(str(self.model_path)))
        self.tokenizer = self._read_tokenizer()
        self.team = join(self.config, self.model_path, weights_of is not None)
        self.engine = self._built(self._lent(weights_of))
        if self.engine.saver and self.config.kv_transfer_config:
            self.engine.saver.connect(self.config.kv_transfer_config.kv_connector_extra_config)
        self.intake = Intake(self.config, self.engine, self.tokenizer)
        adapters = getattr(self.engine.target, "adapters", None)
        self.loras: LoadedLoras | None = weights_of.loras if weights_of is not None else None
        if self.loras is None and adapters is not None:
            self.loras = LoadedLoras(adapters)
        self._streams: dict[Request, deque[Update]] = {}  # open streams, and the updates waiting for each

    def _built(self, lent: Target | None) -> Engine:
        """Build the engine; if that fails, end the other ranks."""
        try:
            return build_engine(self.config, self.model_path, lent, self.team)
        except BaseException:
            if self.team is not None:
                self.team.close()
            raise

    def _read_tokenizer(self) -> Tokenizer:
        if self.config.skip_tokenizer_init:
            return NoTokenizer(self.model_path)
        return Tokenizer(resolve(self.config.tokenizer) if self.config.tokenizer else self.model_path)

    def _lent(self, other: LLM | None) -> Target | None:
        """The target of another LLM, if it is the one that this LLM would load."""
        if other is None:
            return None
        if name := self.config.differs(other.config, LOADED_BY.split()):
            raise ConfigError(f"weights_of: {name} differs from the other's; give both the same.")
        if other.model_path != self.model_path:
            raise ConfigError(f"weights_of: the other one runs {other.model_path}; give both the same model.")
        return other.engine.target

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool | Callable[..., Any] = True,
        lora_request: Loras = None,
    ) -> list[RequestOutput]:
        """Answer prompts (texts, token id lists, or vLLM's dictionaries); outputs come in the order of the prompts."""
        if not isinstance(prompts, (str, dict, list, tuple)):
            raise ConfigError(f"prompts must be a text, token ids, a dictionary or a list of them, got {prompts!r}.")
        single = isinstance(prompts, (str, dict)) or (bool(prompts) and isinstance(prompts[0], int))
        batch: list[Any] = [prompts] if single else list(prompts)
        if sampling_params is None or isinstance(sampling_params, SamplingParams):
            every = [sampling_params or SamplingParams()] * len(batch)
        else:
            every = list(sampling_params)
        for params in every:
            if not isinstance(params, SamplingParams):
                raise ConfigError(f"sampling_params must be SamplingParams(...) objects, got {type(params).__name__}.")
        if len(every) != len(batch):
            raise ConfigError(f"{len(batch)} prompts came with {len(every)} sampling_params; give one, or one each.")
        if not isinstance(lora_request, LoRARequest | list | tuple | None):
            raise ConfigError(
                f"lora_request must be a LoRARequest or a list of them, got {type(lora_request).__name__}."
            )
        loras = [lora_request] * len(batch) if isinstance(lora_request, LoRARequest | None) else list(lora_request)
        if len(loras) != len(batch):
            raise ConfigError(f"{len(batch)} prompts came with {len(loras)} lora_requests; give one, or one each.")
        jobs = [(p, self._tokens_of, s, lora) for p, s, lora in zip(batch, every, loras, strict=True)]
        return self._answer(jobs, use_tqdm)

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool | Callable[..., Any] = True,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        chat_template_kwargs: dict[str, Any] | None = None,
        lora_request: Loras = None,
    ) -> list[RequestOutput]:
        """Answer conversations, each a list of {"role", "content"} messages, through the model's chat template."""
        batch: Any = [messages] if messages and isinstance(messages[0], dict) else messages
        batch = [_checked_messages(conversation) for conversation in batch]
        options = {
            "chat_template": chat_template,
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
            "tools": tools,
            **(chat_template_kwargs or {}),
        }
        prompts = [{"prompt_token_ids": self.tokenizer.chat(m, **options)} for m in batch]
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm, lora_request=lora_request)

    def stream(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> Iterator[Update]:
        """Ours: one prompt's tokens as they come, each step with how many of them were accepted drafts.

        Several streams may be read in turn, and other calls made between two steps: the stream that steps the engine
        queues the others' updates for them.
        """
        tokens, _ = self._tokens_of(prompt)
        request = self._requests("stream", tokens, sampling_params or SamplingParams())[0]
        news = self._streams.setdefault(request, deque())
        self.engine.add(request)
        try:
            while request.finish_reason is None or news:
                if not news:
                    self._step()
                while news:
                    yield news.popleft()
        finally:
            self.engine.abort(request)
            del self._streams[request]

    def _step(self) -> list[Update]:
        """Run one step of the engine; what it added to an open stream is queued there."""
        updates = self.engine.step()
        for update in updates:
            if update.error is not None:
                print(f"augury: a request failed: {update.request.stop_reason}", file=sys.stderr)
            if update.request in self._streams:
                self._streams[update.request].append(update)
        return updates

    def get_tokenizer(self) -> Any:
        """transformers' tokenizer."""
        return self.tokenizer.whole()

    def get_metrics(self) -> list[Metric]:
        """Counters and gauges since the start, by vLLM's names."""
        scheduler = self.engine.scheduler
        gauges = {
            "num_requests_running": float(len(scheduler.running)),
            "num_requests_waiting": float(scheduler.num_waiting),
            "kv_cache_usage_perc": scheduler.pool.usage,
        }
        return as_metrics(self.engine.stats, self.config.model, gauges, self.config.speculative_config is not None)

    def reset_prefix_cache(self) -> bool:
        """Forget every cached prefix."""
        self.engine.scheduler.forget_prefixes()
        return True

    def close(self) -> None:
        """Ours: save persistent data (`suffix_decoding_save_path`) now rather than at exit.

        Its other ranks end, if it has any.
        """
        drafter = self.engine.drafter
        if drafter is not None:
            drafter.close()
        if self.team is not None:
            self.team.close()

    # --- one batch -------------------------------------------------------------------------------------------------

    def _answer(self, batch: list[Any], use_tqdm: Any) -> list[RequestOutput]:
        """Run a batch to its end; a request that is refused does not disturb the others."""
        jobs: list[tuple[str | None, list[int], list[Request], Exception | None]] = []
        for prompt, encode, params, lora in batch:
            text: str | None = prompt if isinstance(prompt, str) else None
            tokens: list[int] = []
            try:
                tokens, text = encode(prompt)
                jobs.append((text, tokens, self._requests(str(self.intake.arrivals), tokens, params, lora), None))
            except (ValueError, TypeError) as error:
                jobs.append((text, tokens, [], error))
        errors = [failure for *_, failure in jobs if failure is not None]
        if errors and len(errors) == len(jobs):
            raise errors[0]
        for refusal in errors:
            print(f"augury: a request was refused: {refusal}", file=sys.stderr)
        self._run([request for _, _, requests, _ in jobs for request in requests], use_tqdm)
        return [self._output(i, *job) for i, job in enumerate(jobs)]

    def _run(self, requests: list[Request], use_tqdm: Any) -> None:
        bar = progress_bar(len(requests), use_tqdm)
        for request in requests:
            self.engine.add(request)
        first = 0  # all before it have ended; looking at every one after every step costs more than the step
        try:
            while first < len(requests):
                if requests[first].finish_reason is not None:
                    first += 1
                    continue
                for update in self._step():
                    bar.count(update.request, len(update.tokens))
        finally:  # also on Ctrl-C: nothing stays in slots or blocks
            for request in requests:
                self.engine.abort(request)
            bar.close()

    def _tokens_of(self, prompt: Prompt) -> tuple[list[int], str | None]:
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt), prompt
        if isinstance(prompt, dict):
            if prompt.get("multi_modal_data"):
                raise ConfigError("multi_modal_data is not supported: the engine reads text only; remove it.")
            if "prompt_token_ids" in prompt:
                return list(prompt["prompt_token_ids"]), prompt.get("prompt")
            if isinstance(prompt.get("prompt"), str):
                return self.tokenizer.encode(prompt["prompt"]), prompt["prompt"]
            raise ConfigError(f"a prompt dictionary needs 'prompt' or 'prompt_token_ids', got {sorted(prompt)}.")
        if isinstance(prompt, (list, tuple)) and all(isinstance(t, int) for t in prompt):
            return list(prompt), None
        raise ConfigError(f"a prompt must be a text, a list of token ids or a dictionary, got {type(prompt).__name__}.")

    def _requests(
        self, name: str, tokens: list[int], params: SamplingParams, lora: LoRARequest | None = None
    ) -> list[Request]:
        if lora is not None and self.loras is None:
            raise ConfigError(f"lora_request {lora.lora_name!r} needs an engine with enable_lora=True.")
        loaded = self.loras.load(lora.lora_name, lora.lora_path, evict=True) if lora and self.loras else None
        return self.intake.requests(name, tokens, params, loaded)

    def _output(
        self, index: int, prompt: str | None, tokens: list[int], requests: list[Request], error: Exception | None
    ) -> RequestOutput:
        if error is not None:
            return refused(str(index), prompt, tokens, str(error))
        decode = self.tokenizer.decoder(skip_special=False)
        for request in requests:
            for entry in (*request.logprobs, *(e for e in request.prompt_logprobs if e)):
                for token, value in entry.items():
                    entry[token] = value._replace(decoded_token=decode([token]))
        first, spec = requests[0], self.config.speculative_config
        return RequestOutput(
            request_id=str(index),
            prompt=prompt,
            prompt_token_ids=tokens,
            outputs=[completion(request, spec.num_speculative_tokens if spec else None) for request in requests],
            finished=True,
            prompt_logprobs=first.prompt_logprobs if first.params.prompt_logprobs is not None else None,
            num_cached_tokens=first.cached_tokens,
            kv_transfer_params=self.engine.saver.saved(first) if self.engine.saver else None,
        )


def _checked_messages(conversation: Any) -> Messages:
    """A conversation whose contents are plain texts; OpenAI's lists of text parts are joined."""
    if not isinstance(conversation, (list, tuple)) or not conversation:
        raise ConfigError(f"a conversation is a list of {{'role', 'content'}} messages, got {conversation!r}.")
    checked = []
    for message in conversation:
        if not isinstance(message, dict) or "role" not in message:
            raise ConfigError(f"a chat message needs a 'role' and a 'content', got {message!r}.")
        content = message.get("content")
        if isinstance(content, list):
            if not all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in content):
                raise ConfigError("a message's content may hold text parts only: {'type': 'text', 'text': ...}.")
            message = {**message, "content": "".join(part["text"] for part in content)}
        checked.append(message)
    return checked
