"""What a finished request looks like to the caller, by vLLM's names."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from augury.engine.request import LogprobDict, Request


@dataclass(slots=True)
class CompletionOutput:
    """One answer of a request."""

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[LogprobDict] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    spec_decode_metrics: dict[str, Any] | None = None
    from_draft: list[bool] = field(default_factory=list)  # ours: which tokens were accepted drafts

    def finished(self) -> bool:
        """Whether this answer is complete."""
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestOutput:
    """Everything about one prompt: what was asked, and its n answers."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    prompt_logprobs: list[LogprobDict | None] | None = None
    num_cached_tokens: int = 0
    metrics: Any = None
    lora_request: Any = None
    kv_transfer_params: dict[str, Any] | None = None
    error: str | None = None  # ours: why this request was refused, when others of its batch were answered


def completion(request: Request, num_spec_tokens: int | None) -> CompletionOutput:
    """The answer as it stands; `num_spec_tokens` is the engine's K, None without speculation."""
    wants_logprobs = request.params.logprobs is not None
    without = num_spec_tokens is None and not request.spec.num_drafts  # a prediction drafts without a method, too
    return CompletionOutput(
        index=request.index,
        text=request.text.text if request.text else "",
        token_ids=request.output,
        cumulative_logprob=request.cumulative_logprob if wants_logprobs else None,
        logprobs=list(request.logprobs) if wants_logprobs else None,
        finish_reason=request.finish_reason,
        stop_reason=request.stop_reason,
        spec_decode_metrics=None if without else spec_metrics(request, num_spec_tokens or 0),
        from_draft=list(request.from_draft),
    )


def spec_metrics(request: Request, num_spec_tokens: int, detailed: bool = False) -> dict[str, Any]:
    """How speculation went for one request, by vLLM's names; the histogram counts steps by drafts accepted."""
    spec, steps = request.spec, request.spec_steps
    taken = [accepted for _, accepted in steps]
    lists = {"per_step_accepted": taken, "per_step_drafted": [drafted for drafted, _ in steps]} if detailed else {}
    return {
        "mean_acceptance_length": spec.acceptance_length,
        "draft_acceptance_rate": spec.acceptance_rate,
        "num_spec_steps": spec.num_drafts,
        "num_draft_tokens": spec.num_draft_tokens,
        "num_accepted_draft_tokens": spec.num_accepted_tokens,
        "num_spec_tokens": num_spec_tokens,
        "acceptance_histogram": [taken.count(j) for j in range(max([num_spec_tokens, *taken]) + 1)],
        **lists,
        **({"by_drafter": _by_drafter(request)} if request.by_drafter else {}),
    }


def _by_drafter(request: Request) -> dict[str, dict[str, int]]:
    """Drafted and accepted tokens by drafter, where there are several."""
    return {
        name: {"num_draft_tokens": drafted, "num_accepted_draft_tokens": accepted}
        for name, (drafted, accepted) in request.by_drafter.items()
    }


def refused(request_id: str, prompt: str | None, tokens: list[int], error: str) -> RequestOutput:
    """The output of a request that could not be run."""
    answer = CompletionOutput(0, "", [], finish_reason="error", stop_reason=error)
    return RequestOutput(request_id, prompt, tokens, [answer], finished=True, error=error)
