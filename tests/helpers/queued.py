"""Requests and a scheduler without a model, for tests."""

from __future__ import annotations

from augury.config.sampling import SamplingParams
from augury.engine.blocks import BlockPool
from augury.engine.request import Request
from augury.engine.scheduler import Scheduler
from augury.observe.stats import EngineStats

BLOCK = 4


def make_request(arrival: int, prompt: list[int], answer: int = 8) -> Request:
    return Request(
        id=str(arrival),
        arrival=arrival,
        prompt_len=len(prompt),
        tokens=list(prompt),
        params=SamplingParams(),
        seed=0,
        stop_ids=frozenset(),
        max_len=len(prompt) + answer,
        text=None,
    )


def make_scheduler(blocks: int = 33, slots: int = 8, budget: int = 16, chunk: int = 0) -> Scheduler:
    return Scheduler(BlockPool(blocks), slots, BLOCK, budget, chunk, True, EngineStats())


def ask(scheduler: Scheduler, key: str, job: str, first: int, many: int = 1, answer: int = 8) -> list[Request]:
    """Queue requests of one job, numbered from `first`."""
    made = [make_request(first + i, [1, 2, 3], answer) for i in range(many)]
    for request in made:
        request.client = key, job
        scheduler.add(request)
    return made


def run_pass(scheduler: Scheduler) -> None:
    """Plan, draw token 7 for everyone, commit."""
    for item in scheduler.plan():
        scheduler.launched([item])
        kept = item.request.accept([7], 0) if item.active else 0
        scheduler.commit(item.request, item.start + item.num_new_tokens, 0, kept)
        if item.request.finish_reason:
            scheduler.finish(item.request)
