"""What decoding costs where it is captured in graphs: each graph is timed on padding when the engine starts."""

from __future__ import annotations

import time

import numpy as np
import torch

from augury.engine.aside import LINES, ROWS
from augury.engine.blanks import blank
from augury.engine.cost import DepthCost, RowCost
from augury.engine.goodput import Costs
from augury.engine.rows import RESTS, StepShape, round_up, row_sizes
from augury.engine.runner import Runner
from augury.engine.warm_up import steady_shapes

ROUNDS = 3
PROBED_GROUPS, PROBED_ROWS = (1, 4, 16, 32), (16, 128, 512, ROWS)  # kernels for other sizes are those of some of these
Timed = dict[tuple[int, int, int], float]  # seconds by requests, rows and the drafter's depth


@torch.inference_mode()
def captured_costs(runner: Runner, slots: int) -> tuple[Costs, float]:
    """Costs of the target by rows and of the drafter by depth; and the least seconds that ending a rest takes."""
    timed = _timed(runner, slots)
    groups = sorted({requests for requests, _, _ in timed})
    points: dict[int, float] = {}
    for (requests, size, depth), seconds in sorted(timed.items()):  # of one size, that with the most requests is kept
        if depth == RESTS or (depth == 0 and not (size == requests and runner.aside is not None)):
            points[size] = seconds
    drafting = np.array([[timed[n, n, depth] - timed[n, n, 0] for n in groups] for depth in runner.depths])
    rows = RowCost(points, lambda requests: row_sizes(round_up(requests), runner.nodes, runner.depths))
    return Costs(rows, DepthCost(runner.depths, groups, drafting.clip(min=0.0))), _waking(runner, slots)


def _timed(runner: Runner, slots: int) -> Timed:
    """Time the target's part by rows, and every draft depth for passes without drafts to verify."""
    found: Timed = {}
    for shape in steady_shapes(runner, slots):
        if shape.draft_depth <= 0 or shape.rows == shape.groups:
            found[shape.groups, shape.rows, shape.draft_depth] = min(_seconds(runner, shape) for _ in range(ROUNDS))
    return found


def _seconds(runner: Runner, shape: StepShape) -> float:
    padding = blank(runner, shape)
    torch.cuda.synchronize()
    begun = time.perf_counter()
    with runner.together("run", padding):
        runner.run(padding)
    torch.cuda.synchronize()
    return time.perf_counter() - begun


def _waking(runner: Runner, slots: int) -> float:
    """Seconds to read next to nothing, after reads of all sizes have compiled what they need."""
    taken, aside = 0.0, runner.aside
    if aside is None:
        return taken
    many = {(groups, rows) for groups in (*PROBED_GROUPS, slots) for rows in (groups, *PROBED_ROWS, LINES * groups)}
    fitting = sorted((groups, rows) for groups, rows in many if groups <= min(slots, rows) and rows <= ROWS)
    for groups, rows in (*reversed(fitting), (1, 1)):
        begun = time.perf_counter()
        aside.probe(groups, rows)
        torch.cuda.synchronize()
        taken = time.perf_counter() - begun
    return taken
