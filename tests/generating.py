"""What tests of drafters share: answers as token ids, and the ways of serving that must not change them."""

from __future__ import annotations

from typing import Any

from augury import LLM, SamplingParams


def ids(llm: LLM, prompts: list[Any], params: SamplingParams | list[SamplingParams]) -> list[list[int]]:
    """The answers' tokens; afterwards every block must be free again."""
    outputs = llm.generate(prompts, params, use_tqdm=False)
    assert llm.engine.scheduler.pool.num_free == llm.engine.scheduler.pool.num_blocks
    return [output.outputs[0].token_ids for output in outputs]
