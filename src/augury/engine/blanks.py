"""Forward passes of padding only: to compile kernels, to capture graphs, and to measure what a pass costs."""

from __future__ import annotations

import torch

from augury.engine.rows import StepShape
from augury.engine.runner import Runner
from augury.engine.step_input import StepInput


def blank(runner: Runner, shape: StepShape) -> StepInput:
    """The input of a pass of padding rows only."""
    table = torch.zeros(8, shape.groups, dtype=torch.int64)
    table[0] = runner.state.padding_slot
    return StepInput(table, shape, shape.logits_rows, shape.groups)


@torch.inference_mode()
def run_blank(runner: Runner, rows: int) -> float:
    """Run a blank pass as large as a decode pass of `rows`; returns the seconds of the drafter's part."""
    runner.drafter_seconds = None
    if runner.by_slot:  # the graph of `rows` requests without drafts
        branching = runner.drafter is not None and runner.drafter.branching
        shape = StepShape(rows, rows, rows, 0, False, False, True, branching, True)
    else:
        span = min(128, runner.state.block_tables.shape[1] * runner.block_size)
        shape = StepShape(1, rows, rows, span, True, True, runner.drafter is not None, False)
    padding = blank(runner, shape)
    with runner.together("run", padding):
        runner.run(padding)
    return runner.drafter_seconds or 0.0
