"""Limits how much each vLLM request drafts: `--scheduler-cls augury.plugins.vllm.budget.BudgetScheduler`.

A request says so itself (`"vllm_xargs": {"num_speculative_tokens": 2}`), or its own past does: a row is drafted as
long as the chance that the draft gets that far is worth what a row costs.
"""

from __future__ import annotations

import os
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from augury.plugins.vllm.allowance import FREE, ROW_COST, asked, row_cost
from augury.plugins.vllm.survival import Survival


class _Budget:
    """Cuts drafts before they are scheduled; a mixin that precedes vLLM's scheduler among the base classes."""

    is_async: bool  # which of vLLM's ways to schedule the class is for
    other: str  # the class for the other way

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        # The wrong one of the two would start and then draft nothing, or hand placeholders to the model as tokens.
        if bool(self.scheduler_config.async_scheduling) is not self.is_async:  # type: ignore[attr-defined]
            found = "on" if not self.is_async else "off"
            raise ValueError(
                f"Async scheduling is {found} with this drafter: use "
                f"--scheduler-cls augury.plugins.vllm.budget.{self.other} instead of {type(self).__name__}."
            )
        if getattr(self, "num_sampled_tokens_per_step", 1) == 0:
            raise ValueError("A diffusion model has no drafts to cut: start it without --scheduler-cls.")
        self._row_cost = row_cost(os.environ.get(ROW_COST))
        self._known: dict[str, Survival] = {}

    def update_draft_token_ids(self, draft_token_ids: Any) -> None:
        """Cut drafts that a worker hands over."""
        drafts = draft_token_ids.draft_token_ids
        for i, name in enumerate(draft_token_ids.req_ids):
            request = self.requests.get(name)  # type: ignore[attr-defined]
            if request is not None:
                drafts[i] = drafts[i][: self._allowed(request)]
        super().update_draft_token_ids(draft_token_ids)  # type: ignore[misc]

    def _update_after_schedule(self, scheduler_output: Any) -> None:
        """Cut placeholders of drafts that stay on the worker, when scheduling is async."""
        super()._update_after_schedule(scheduler_output)  # type: ignore[misc]
        for name in scheduler_output.num_scheduled_tokens:
            request = self.requests.get(name)  # type: ignore[attr-defined]
            if request is not None and request.spec_token_ids:
                request.spec_token_ids = request.spec_token_ids[: self._allowed(request)]

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """Learn the outcome of each draft, then let vLLM process the output."""
        if self._row_cost > FREE:
            self._learn(scheduler_output, model_runner_output)
        return super().update_from_output(scheduler_output, model_runner_output)  # type: ignore[misc]

    def _learn(self, scheduler_output: Any, model_runner_output: Any) -> None:
        sampled = model_runner_output.sampled_token_ids or []  # a step without samples has an empty list
        barred = getattr(scheduler_output, "num_invalid_spec_tokens", None) or {}  # by a grammar: the draft is not told
        for name, drafted in scheduler_output.scheduled_spec_decode_tokens.items():
            row = model_runner_output.req_id_to_index.get(name)
            taken = sampled[row] if row is not None and row < len(sampled) else []
            if len(taken):
                self._survival(name).see(len(drafted) - barred.get(name, 0), len(taken) - 1)
        self._known = {name: known for name, known in self._known.items() if name in self.requests}  # type: ignore[attr-defined]

    def _allowed(self, request: Any) -> int:
        most = int(self.num_spec_tokens)  # type: ignore[attr-defined]
        said = asked(request.sampling_params, most)
        if said is not None:
            return said
        return self._survival(request.request_id).worth(self._row_cost) if self._row_cost > FREE else most

    def _survival(self, name: str) -> Survival:
        return self._known.setdefault(name, Survival(int(self.num_spec_tokens)))  # type: ignore[attr-defined]


class BudgetScheduler(_Budget, AsyncScheduler):  # type: ignore[misc]
    """For async scheduling, which is vLLM's default."""

    is_async, other = True, "SyncBudgetScheduler"


class SyncBudgetScheduler(_Budget, Scheduler):  # type: ignore[misc]
    """For drafters on the host (n-gram, suffix, custom classes) and `--no-async-scheduling`."""

    is_async, other = False, "BudgetScheduler"
