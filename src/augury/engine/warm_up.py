"""Passes of padding only, before the first request, so that none waits for kernels or graphs.

Kernels are compiled for the kinds of pass they meet: a row or many, one request or many, prompts or not. The first
start on a machine compiles them, later ones find them on disk.
"""

from __future__ import annotations

import torch

from augury.engine.blanks import blank
from augury.engine.rows import RESTS, StepShape, round_up, row_sizes
from augury.engine.runner import Runner
from augury.engine.step_input import StepInput

PROMPT_ROWS = (8, 128, 512, 2048)  # on a GPU, kernels for other numbers of rows are those of one of these


@torch.inference_mode()
def warm_up(runner: Runner, sizes: tuple[int, ...]) -> None:
    """Run passes of these numbers of rows, with every kind of sampling."""
    kinds = ((True, True), (True, False), (False, False))
    for size in sizes:
        # Compiled code that serves any number of rows is all there after the first size, but for odd arrays.
        every = size == sizes[0] or not runner.target.any_size
        for plain, greedy in kinds if every else kinds[-1:]:
            shape = StepShape(1, size, min(size, 8), 128, plain, greedy, runner.drafter is not None, False)
            padding = blank(runner, shape)
            with runner.together("advance", padding):
                runner.advance(padding)


@torch.inference_mode()
def warm_up_prompts(runner: Runner, most_groups: int, most_rows: int) -> None:
    """On a GPU, run passes that read prompts of few and of many requests."""
    if not runner.by_slot:
        return
    for groups in sorted({1, round_up(most_groups)}):
        for rows in [*(size for size in PROMPT_ROWS if groups < size < most_rows), most_rows]:
            padded = runner.padded(rows)
            padding = blank(runner, StepShape(groups, padded, groups, 0, False, False, True, _branches(runner)))
            with runner.together("run", padding):
                runner.run(padding)


@torch.inference_mode()
def capture_graphs(runner: Runner, most_groups: int, budget: int) -> None:
    """Capture every graph that decoding needs; they may take `budget` bytes."""
    captured = runner.captured
    if captured is None or not runner.by_slot:
        return

    def record(step_input: StepInput) -> None:
        with runner.together("record", step_input):
            captured.record(step_input, runner.state.version)

    shapes = sorted(steady_shapes(runner, most_groups), key=lambda shape: -shape.rows)
    captured.fill([blank(runner, shape) for shape in shapes], record, budget)


def steady_shapes(runner: Runner, most_groups: int) -> list[StepShape]:
    """The shapes of all passes that decode."""
    own = runner.target.words is not None and runner.judge.draw is not None  # most requests draw so
    shapes = [
        StepShape(groups, rows, rows, 0, False, False, True, _branches(runner), True, False, own)
        for groups in sorted({round_up(n) for n in range(1, most_groups + 1)}, reverse=True)
        for rows in row_sizes(groups, runner.nodes, runner.depths)
    ]
    return [shape._replace(draft_depth=depth) for shape in shapes for depth in _depths(runner, shape)]


def _depths(runner: Runner, shape: StepShape) -> tuple[int, ...]:
    """How deep the drafter may go in passes of this shape."""
    resting = (RESTS,) if runner.aside is not None and shape.rows == shape.groups else ()
    return (*resting, *runner.depths) or (shape.draft_depth,)


def _branches(runner: Runner) -> bool:
    return runner.drafter is not None and runner.drafter.branching
