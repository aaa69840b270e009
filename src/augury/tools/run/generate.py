"""`augury generate`: answers prompts, streamed to a terminal or a pipe."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from augury.config.sampling import SamplingParams
from augury.observe.stats import SpecStats
from augury.tools.run.screen import show_answers, stream
from augury.tools.shared.given_prompts import GivenPrompt
from augury.tools.shared.loading import chat_prompt, conditions, load
from augury.tools.shared.runs import acceptance, follow
from augury.tools.shared.terminal import print_json

if TYPE_CHECKING:
    from augury.engine.llm import LLM
    from augury.engine.outputs import RequestOutput


def generate(asked: list[GivenPrompt], chat: bool, params: SamplingParams, as_json: bool, **engine: Any) -> bool:
    """Answer the prompts; returns False if some were refused, which the engine has reported on stderr."""
    llm = load(quiet=as_json, **engine)
    prompts = [_prompt(llm, one, chat) for one in asked]
    if len(prompts) > 1 or params.n > 1:
        return _many(llm, prompts, params, as_json)
    if not as_json:
        stream(llm, prompts[0], params)
        return True
    run = follow(llm, prompts[0], params)
    print_json(
        {
            "text": run.text,
            "token_ids": run.token_ids,
            "finish_reason": run.finish_reason,
            "metrics": run.metrics(),
            "conditions": conditions(llm, params),
        }
    )
    return True


def _prompt(llm: LLM, asked: GivenPrompt, chat: bool) -> Any:
    """The prompt for the engine: a conversation always uses the chat template, a text only if `chat` is set."""
    if isinstance(asked, str) and not chat:
        return asked
    return chat_prompt(llm, [{"role": "user", "content": asked}] if isinstance(asked, str) else asked)


def _many(llm: LLM, prompts: list[Any], params: SamplingParams, as_json: bool) -> bool:
    """Answer a batch, with a progress bar on a terminal."""
    begun = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=sys.stderr.isatty() and not as_json)
    seconds = time.perf_counter() - begun
    if as_json:
        print_json(_record(outputs, seconds, llm, params))
    else:
        show_answers(outputs, llm, params)
    return not any(output.error for output in outputs)


def _record(outputs: list[RequestOutput], seconds: float, llm: LLM, params: SamplingParams) -> dict[str, Any]:
    answers: list[dict[str, Any]] = [
        {
            "prompt": i,
            "index": answer.index,
            "text": answer.text,
            "token_ids": answer.token_ids,
            "finish_reason": answer.finish_reason,
            "error": output.error,
        }
        for i, output in enumerate(outputs)
        for answer in output.outputs
    ]
    tokens = sum(len(answer["token_ids"]) for answer in answers)
    spec = llm.engine.stats.spec if llm.config.speculative_config else SpecStats()
    return {
        "outputs": answers,
        "metrics": {
            "output_tokens": tokens,
            "seconds": round(seconds, 4),
            "tokens_per_second": round(tokens / seconds, 2),
            **acceptance(spec),
        },
        "conditions": conditions(llm, params),
    }
