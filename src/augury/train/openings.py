"""Prompts that the target writes itself: its chat template is cut just before the user's words, and continued.

They are what the target was trained to expect, in any number, and broaden a collection of prompts that is mostly of one
kind.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from augury.config.errors import ConfigError
from augury.config.sampling import SamplingParams

MARK = "AUGURY USER WORDS"
LONGEST = 128  # tokens of an opening; what has not ended by then is dropped
SHORTEST = 12  # characters
SPARE = 1.25  # factor by which more are drawn than are asked for: some do not end, some come twice


def openings(llm: Any, count: int, seed: int = 0, tick: Callable[[int], None] = lambda done: None) -> list[str]:
    """Up to `count` different questions in the target's own words, from at most three rounds of sampling."""
    found: dict[str, None] = {}
    cut = before_the_user(llm.get_tokenizer())
    drawn = 0
    for _ in range(3):
        if len(found) >= count:
            break
        missing = int((count - len(found)) * SPARE) + 1
        params = [
            SamplingParams(temperature=1.0, top_p=0.95, seed=seed + drawn + i, max_tokens=LONGEST)
            for i in range(missing)
        ]
        drawn += missing
        for output in llm.generate([{"prompt_token_ids": cut}] * missing, params, use_tqdm=False):
            said = output.outputs[0]
            if said.finish_reason == "stop" and len(said.text.strip()) >= SHORTEST:
                found[said.text.strip()] = None
        tick(min(count, len(found)))
    return list(found)[:count]


def before_the_user(tokenizer: Any) -> list[int]:
    """Token ids of an empty conversation, up to where the user's words begin."""
    text = tokenizer.apply_chat_template([{"role": "user", "content": MARK}], tokenize=False)
    head, mark, _ = text.partition(MARK)
    if not mark:
        raise ConfigError("--openings: this target's chat template does not hold the user's words as they are.")
    ids: list[int] = tokenizer.encode(head, add_special_tokens=False)
    return ids
