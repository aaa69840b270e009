"""A forward pass in flight: from its launch until the host has read its report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from augury.engine.advance import StepOutput
from augury.engine.scheduled import ScheduledRequest
from augury.engine.step_input import StepInput
from augury.observe.steps import Step
from augury.verify.tree import Draft


@dataclass(slots=True)
class Flight:
    """A forward pass in flight."""

    scheduled: list[ScheduledRequest]
    step: Step
    step_input: StepInput
    rest: Callable[[], StepOutput] | None = None  # its second half, until that is launched
    output: StepOutput = field(init=False)  # of a captured pass: overwritten by the next, so read it before that one
    drafts: Draft | None = field(init=False)
    report: Tensor = field(init=False)  # int64 [G, ...], see StepOutput
    landed: torch.cuda.Event | None = None  # None: it is over

    def land(self) -> list[list[int]]:
        """Wait for the pass and return its report, one list per group."""
        if self.landed is not None:
            self.landed.synchronize()
        return self.report.tolist()
