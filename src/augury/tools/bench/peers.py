"""The contenders themselves: each takes lists of token ids and returns as many new ones as asked, greedily.

They live in worker processes, so every heavy import is inside. Each run starts without anything remembered of earlier
prompts, and none of them stops at an end-of-text token.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from augury.tools.bench.contenders import PADDED, Setup

Tokens = list[int]


@dataclass(slots=True)
class Ran:
    """One timed call: what came out, how long it took, what was drafted."""

    seconds: float
    outputs: list[Tokens]
    drafts: int = 0  # forward passes that had a draft
    drafted: int = 0  # tokens in those drafts
    accepted: int = 0  # drafted tokens that were accepted
    foreign: float = 0.0  # processor seconds that other processes took meanwhile

    @property
    def tokens(self) -> int:
        """Number of new tokens."""
        return sum(map(len, self.outputs))


class TransformersPeer:
    """transformers' `generate`: plain, with prompt lookup, or on one left-padded batch."""

    def __init__(self, setup: Setup) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        self._torch = torch
        self._padded = setup.contender.batching == PADDED
        self._model: Any = AutoModelForCausalLM.from_pretrained(setup.directory, dtype=getattr(torch, setup.dtype))
        # Emptied rather than overridden: min_new_tokens would bar the end token and change the text.
        self._model.generation_config.eos_token_id = None
        self._options: dict[str, Any] = {"do_sample": False, "pad_token_id": 0}
        self._most = 0  # tokens in a draft
        if setup.contender.speculates:
            self._most = setup.speculative["num_speculative_tokens"]
            self._options["prompt_lookup_num_tokens"] = self._most
            self._options["max_matching_ngram_size"] = setup.speculative.get("prompt_lookup_max") or 2
        self._widths: list[int] = []  # rows of each pass since the last run began
        self._model.register_forward_pre_hook(self._note_width, with_kwargs=True)

    def run(self, prompts: list[Tokens], max_tokens: int) -> Ran:
        """Answer the prompts one after another, or all in one padded batch."""
        self._widths.clear()
        begun = time.perf_counter()
        batches = [prompts] if self._padded else [[prompt] for prompt in prompts]
        outputs = [answer for batch in batches for answer in self._generate(batch, max_tokens)]
        seconds = time.perf_counter() - begun
        if not self._most:
            return Ran(seconds, outputs)
        # A pass runs the last token and the draft after it; a prompt's first pass also prefills it, and its draft is
        # left out, since it cannot be told apart from the prompt.
        drafted = [width - 1 for width in self._widths if 1 < width <= self._most + 1]
        accepted = sum(map(len, outputs)) - len(self._widths)
        return Ran(seconds, outputs, len(drafted), sum(drafted), max(0, accepted))

    def _generate(self, batch: list[Tokens], max_tokens: int) -> list[Tokens]:
        torch = self._torch
        width = max(map(len, batch))
        ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in batch])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in batch])
        with torch.inference_mode():
            out = self._model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=max_tokens, **self._options)
        answers: list[Tokens] = out[:, width : width + max_tokens].tolist()
        return answers

    def _note_width(self, _module: Any, _args: Any, kwargs: dict[str, Any]) -> None:
        self._widths.append(kwargs["input_ids"].shape[1])


class LlamaCppPeer:
    """llama.cpp through llama-cpp-python, plain or with its own prompt lookup."""

    def __init__(self, setup: Setup) -> None:
        from llama_cpp import Llama
        from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

        assert setup.gguf
        self._sizes: list[int] = []
        lookup: Any = None
        if setup.contender.speculates:
            nodes, reach = setup.speculative["num_speculative_tokens"], setup.speculative.get("prompt_lookup_max") or 2
            lookup = _Counted(LlamaPromptLookupDecoding(reach, nodes), self._sizes)
        self._model: Any = Llama(
            setup.gguf,
            n_ctx=setup.max_len,
            n_threads=setup.threads,
            n_threads_batch=setup.threads,
            draft_model=lookup,
            logits_all=lookup is not None,
            verbose=False,
        )

    def run(self, prompts: list[Tokens], max_tokens: int) -> Ran:
        """Answer the prompts one after another."""
        self._sizes.clear()
        begun = time.perf_counter()
        outputs = [self._generate(prompt, max_tokens) for prompt in prompts]
        seconds = time.perf_counter() - begun
        drafted = [size for size in self._sizes if size]
        # One pass prefills each prompt, and one more follows each look-up, drafted or not; all yield their own token.
        accepted = sum(map(len, outputs)) - len(prompts) - len(self._sizes) if self._sizes else 0
        return Ran(seconds, outputs, len(drafted), sum(drafted), accepted)

    def _generate(self, prompt: Tokens, max_tokens: int) -> Tokens:
        self._model.reset()
        stream = self._model.generate(prompt, temp=0.0, repeat_penalty=1.0)
        answer = [next(stream) for _ in range(max_tokens)]
        stream.close()
        return answer


class IkLlamaCppPeer:
    """ik_llama.cpp through ik-llama-cpp-python, plain; its own loop would stop at an end-of-text token."""

    def __init__(self, setup: Setup) -> None:
        from ik_llama_cpp.llama import IkLlama

        assert setup.gguf
        self._model: Any = IkLlama(setup.gguf, n_ctx=setup.max_len, n_threads=setup.threads)

    def run(self, prompts: list[Tokens], max_tokens: int) -> Ran:
        """Answer the prompts one after another."""
        begun = time.perf_counter()
        outputs = [self._generate(prompt, max_tokens) for prompt in prompts]
        return Ran(time.perf_counter() - begun, outputs)

    def _generate(self, prompt: Tokens, max_tokens: int) -> Tokens:
        context, answer = self._model._context, Tokens()
        context.kv_cache_clear()
        step = context._n_ubatch
        for start in range(0, len(prompt), step):
            self._pass(prompt[start : start + step], start)
        while len(answer) < max_tokens:
            if answer:
                self._pass(answer[-1:], len(prompt) + len(answer) - 1)
            answer.append(context.sample(-1, temperature=0.0))
        return answer

    def _pass(self, tokens: Tokens, start: int) -> None:
        from ik_llama_cpp import _ctypes_api, _internals

        batch = _internals.make_batch_range(tokens, pos_start=start, logits_last=True)
        failed = self._model._context.decode(batch)
        _ctypes_api.llama_batch_free(batch)
        if failed:
            raise RuntimeError(f"ik_llama.cpp's decode returned {failed}")


class _Counted:
    """A llama.cpp drafter that notes the size of each draft."""

    def __init__(self, inner: Any, sizes: list[int]) -> None:
        self._inner = inner
        self._sizes = sizes

    def __call__(self, input_ids: Any, /, **options: Any) -> Any:
        draft = self._inner(input_ids, **options)
        self._sizes.append(len(draft))
        return draft


class AuguryPeer:
    """Augury's own engine; several prompts run as concurrent requests."""

    def __init__(self, setup: Setup) -> None:
        from augury.engine.llm import LLM

        spec = setup.speculative if setup.contender.speculates else None
        self._llm = LLM(
            setup.directory,
            dtype=setup.dtype,
            device="cpu",
            load_format=setup.contender.load_format,
            cpu_arithmetic=setup.contender.arithmetic,
            speculative_config=spec,
            tensor_parallel_size=setup.ranks,
        )

    def run(self, prompts: list[Tokens], max_tokens: int) -> Ran:
        """Answer the prompts as concurrent requests."""
        from augury.config.sampling import SamplingParams

        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        self._llm.reset_prefix_cache()
        spec = self._llm.engine.stats.spec
        before = (spec.num_drafts, spec.num_draft_tokens, spec.num_accepted_tokens)
        begun = time.perf_counter()
        answers = self._llm.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)
        seconds = time.perf_counter() - begun
        after = (spec.num_drafts, spec.num_draft_tokens, spec.num_accepted_tokens)
        outputs = [answer.outputs[0].token_ids for answer in answers]
        return Ran(seconds, outputs, *(new - old for new, old in zip(after, before, strict=True)))
