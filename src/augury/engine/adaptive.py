"""The adaptive budget that `num_speculative_tokens: "auto"` builds when an engine starts."""

from __future__ import annotations

import time
from pathlib import Path

import torch

from augury.config.speculative import SpeculativeConfig
from augury.drafters.base import Drafter
from augury.drafters.confidence import Confidence
from augury.engine.blanks import run_blank
from augury.engine.cost import DraftCost, RowCost, every_size, measure_rows, sizes_of
from augury.engine.cost_file import remembered
from augury.engine.engine import Engine
from augury.engine.goodput import Costs, GoodputBudget
from augury.engine.graph_cost import captured_costs
from augury.engine.odds import IN_RUNS, STEADY, Trust
from augury.engine.rows import round_up
from augury.engine.runner import Runner
from augury.kernels.faces import face

MEASURED_ROWS = 64  # passes of more rows are judged by these until some have been run
LOOK_UP_SECONDS = 1e-4  # assumed for a drafter on the host, until a call has been timed
LEVEL_SHARE = 0.1  # of a plain pass, assumed for a level of a drafter with weights, until a call has been timed


def adaptive_budget(spec: SpeculativeConfig, slots: int, runner: Runner, kept: Path | None = None) -> GoodputBudget:
    """Measure what passes cost here unless that is `kept`, and let the drafter rest while no request drafts."""
    drafter, nodes = runner.drafter, spec.max_nodes
    assert drafter is not None

    def seconds(rows: int) -> float:
        begun = time.perf_counter()
        spent = run_blank(runner, rows)
        if runner.on_gpu:
            torch.cuda.synchronize()
        return time.perf_counter() - begun - spent

    if runner.depths:
        costs, waking = captured_costs(runner, slots)
        every = spec.plain_pass_every
        budget = GoodputBudget(nodes, slots, costs, drafter.branching, every, _trust(spec), waking=waking)
        budget.rehearse()
        return budget
    seconds(1)  # whatever is compiled or loaded on first use
    most = slots if runner.by_slot else slots * (1 + nodes)
    sizes = sizes_of(min(MEASURED_ROWS, most), round_up)
    measured = remembered(kept, sizes, lambda: measure_rows(seconds, sizes))
    rows = RowCost(every_size(measured) if runner.target.any_size else measured)
    level = LOOK_UP_SECONDS if drafter.on_host else LEVEL_SHARE * seconds(1)
    if runner.captured:  # the drafter is part of the pass, however deep it goes
        level = 0.0
    if (drafter.reads_late or not drafter.on_host) and not runner.on_gpu and drafter.saver is None:
        runner.let_rest()
    ends_early = _may_end_early(spec, drafter, runner)
    drafter.adapt(rows, runner.backlog, ends_early)
    costs = Costs(rows, DraftCost(level))
    confidence = None
    if drafter.chain is not None and ends_early:
        confidence = drafter.chain.confidence = Confidence(slots + 1, nodes)
    every = spec.plain_pass_every
    budget = GoodputBudget(nodes, slots, costs, drafter.branching, every, _trust(spec), confidence)
    budget.rehearse()
    return budget


def _trust(spec: SpeculativeConfig) -> Trust:
    return STEADY if spec.card.has_weights else IN_RUNS


def draft_whole(engine: Engine) -> None:
    """Stop ending drafts early: where drafters are compared, one may be more confident than another."""
    if engine.drafter is not None and isinstance(engine.budget, GoodputBudget):
        engine.drafter.draft_whole()
        engine.budget.confidence = None


def _may_end_early(spec: SpeculativeConfig, drafter: Drafter, runner: Runner) -> bool:
    """Whether drafts may be as long as they promise to pay.

    The host must see scores without waiting, and other ranks would not know. The length of a block changes the law
    by which `block` accepts; `coupled` draws the target's own tokens, whatever was drafted.
    """
    seen = face(runner.target.device) == "numba" and runner.state.leader is None
    return seen and spec.rule == "coupled" and not drafter.branching
