"""`augury generate`: prompts in, answers out, streamed where somebody watches."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from augury.config.sampling import SamplingParams
from augury.observe.stats import SpecStats
from augury.tools.shared.given_prompts import Asked
from augury.tools.shared.loading import chat_prompt, conditions, load
from augury.tools.shared.runs import Piece, Run, acceptance, follow
from augury.tools.shared.terminal import UNSAFE, colored, drafted_style, output_console, print_json, summary

if TYPE_CHECKING:
    from augury.engine.llm import LLM
    from augury.engine.outputs import CompletionOutput, RequestOutput


@dataclass(frozen=True, slots=True)
class Job:
    """Everything the command line said."""

    prompts: list[Asked]
    chat: bool
    params: SamplingParams
    model: str
    arguments: dict[str, Any]  # for LLM
    as_json: bool


def generate(job: Job) -> bool:
    """Answer the prompts; false when some were refused, which the engine has said on standard error."""
    llm = load(job.model, quiet=job.as_json, **job.arguments)
    prompts = [_prompt(llm, asked, job.chat) for asked in job.prompts]
    if len(prompts) == 1 and job.params.n == 1:
        _one(llm, prompts[0], job)
        return True
    return _many(llm, prompts, job)


def _prompt(llm: LLM, asked: Asked, chat: bool) -> Any:
    """What the engine takes: a conversation always goes through the chat template, a text if the user wants it."""
    if isinstance(asked, str) and not chat:
        return asked
    return chat_prompt(llm, [{"role": "user", "content": asked}] if isinstance(asked, str) else asked)


def _one(llm: LLM, prompt: Any, job: Job) -> None:
    """Stream the answer to a terminal in colours, to a pipe as it is, or give it as JSON."""
    if job.as_json:
        run = follow(llm, prompt, job.params)
        return print_json(_record_of(run, llm, job.params))
    console = output_console()
    if not console.is_terminal:
        follow(llm, prompt, job.params, _write_plainly)
        print()
        return None
    style = drafted_style(console)

    def show(pieces: list[Piece], _: Run) -> None:
        console.print(colored(pieces, style), end="", soft_wrap=True)

    run = follow(llm, prompt, job.params, show)
    speculating = llm.config.speculative_config is not None
    console.print()
    if speculating:
        console.print("accepted drafts", style=style, end=" · ")
    console.print(summary(run, speculating), style="dim")
    return None


def _write_plainly(pieces: list[Piece], _: Run) -> None:
    sys.stdout.write("".join(piece.text for piece in pieces))
    sys.stdout.flush()


def _many(llm: LLM, prompts: list[Any], job: Job) -> bool:
    """Answer a batch, with a progress bar where somebody watches."""
    begun = time.perf_counter()
    outputs = llm.generate(prompts, job.params, use_tqdm=sys.stderr.isatty() and not job.as_json)
    seconds = time.perf_counter() - begun
    if job.as_json:
        print_json(_records_of(outputs, seconds, llm, job.params))
    else:
        _print_answers(outputs, llm, job)
    return not any(output.error for output in outputs)


def _print_answers(outputs: list[RequestOutput], llm: LLM, job: Job) -> None:
    console = output_console()
    style = drafted_style(console)
    decode = llm.tokenizer.decoder(job.params.skip_special_tokens)
    for i, output in enumerate(outputs, 1):
        for answer in output.outputs:
            name = f"--- prompt {i}" + (f", answer {answer.index + 1}" if job.params.n > 1 else "")
            console.print(name, style="dim")
            if console.is_terminal and not output.error:
                console.print(_colored_answer(output.prompt_token_ids, answer, decode, style), soft_wrap=True)
            else:
                print(answer.text)


def _colored_answer(prompt: list[int], answer: CompletionOutput, decode: Any, style: str) -> Any:
    """A finished answer with its accepted drafts marked."""
    from augury.engine.text import TextStream

    stream, pieces = TextStream(decode, prompt), []
    for token, drafted in zip(answer.token_ids, answer.from_draft, strict=True):
        before = len(stream.text)
        stream.push(token)
        pieces.append(Piece(stream.text[before:], drafted))
    text = colored(pieces, style)
    return text[: len(answer.text.translate(UNSAFE))]


def _record_of(run: Run, llm: LLM, params: SamplingParams) -> dict[str, Any]:
    return {
        "text": run.text,
        "token_ids": run.token_ids,
        "finish_reason": run.finish_reason,
        "metrics": run.metrics(),
        "conditions": conditions(llm, params),
    }


def _records_of(outputs: list[RequestOutput], seconds: float, llm: LLM, params: SamplingParams) -> dict[str, Any]:
    answers = [(i, output, answer) for i, output in enumerate(outputs) for answer in output.outputs]
    tokens = sum(len(answer.token_ids) for _, _, answer in answers)
    spec = llm.engine.stats.spec if llm.config.speculative_config else SpecStats()
    return {
        "outputs": [
            {
                "prompt": i,
                "index": answer.index,
                "text": answer.text,
                "token_ids": answer.token_ids,
                "finish_reason": answer.finish_reason,
                "error": output.error,
            }
            for i, output, answer in answers
        ],
        "metrics": {
            "output_tokens": tokens,
            "seconds": round(seconds, 4),
            "tokens_per_second": round(tokens / seconds, 2),
            **acceptance(spec),
        },
        "conditions": conditions(llm, params),
    }
