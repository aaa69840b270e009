"""Log-probabilities for the requests that asked for them, from the raw logits, as vLLM's default mode gives them."""

from __future__ import annotations

import torch
from torch import Tensor

from augury.engine.advance import StepOutput
from augury.engine.request import Logprob, LogprobDict, Request
from augury.engine.scheduled import ScheduledRequest
from augury.verify.logprobs import score


def record_logprobs(request: Request, item: ScheduledRequest, group: int, kept: int, output: StepOutput) -> None:
    """Add the log-probabilities of this pass to the request: of its prompt, and of the tokens just kept."""
    params = request.params
    if request.scores_prompt and len(request.prompt_logprobs) < request.prompt_len:
        _record_prompt(request, item, group, output)
    if params.logprobs is not None and kept:
        first = int(output.layout.first[group])
        nodes = output.outcome.path[group, : kept - 1]
        lines = torch.cat([nodes.new_tensor([first]), first + 1 + nodes])
        fresh = _score(output.scores.logits, lines, request.tokens[-kept:], params.logprobs)
        request.logprobs += fresh
        request.cumulative_logprob += sum(
            entry[token].logprob for entry, token in zip(fresh, request.tokens[-kept:], strict=True)
        )


def _record_prompt(request: Request, item: ScheduledRequest, group: int, output: StepOutput) -> None:
    """Line i of the chunk scores the token after it; nothing scores the first token."""
    if not request.prompt_logprobs:
        request.prompt_logprobs.append(None)
    tokens = request.tokens[item.start + 1 : min(item.start + item.num_new_tokens + 1, request.prompt_len)]
    if tokens:
        begin = int(output.layout.begin[group])
        lines = torch.arange(begin, begin + len(tokens), device=output.scores.logits.device)
        k = request.params.prompt_logprobs or 0
        request.prompt_logprobs += _score(output.scores.logits, lines, tokens, k)


def _score(logits: Tensor, lines: Tensor, tokens: list[int], k: int) -> list[LogprobDict]:
    chosen = torch.tensor(tokens, device=logits.device)
    logprob, rank, top_ids, top_logprobs = (t.tolist() for t in score(logits[lines].float(), chosen, k))
    entries = []
    for i, token in enumerate(tokens):
        entry = {token: Logprob(logprob[i], rank[i])}
        for place, (other, value) in enumerate(zip(top_ids[i], top_logprobs[i], strict=True), start=1):
            entry.setdefault(other, Logprob(value, place))
        entries.append(entry)
    return entries
