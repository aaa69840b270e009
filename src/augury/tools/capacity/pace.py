"""The speed of one replica: step time by number of requests, prefill time per token, and room in its KV cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from augury.config.errors import ConfigError
from augury.tools.advise.cost import Cost
from augury.tools.advise.drafters import drafting_for
from augury.tools.advise.shape import ModelShape
from augury.tools.capacity.sessions import SessionShape

ROOM = 1 << 20  # tokens, assumed if the memory of the cache is not known


@dataclass(frozen=True, slots=True)
class Pace:
    """A replica's figures, at the trace's mean context."""

    step: tuple[float, ...]  # seconds by number of requests; 0 for none
    read: float  # seconds per prompt token
    tokens_per_step: float  # for each request
    cache_tokens: int  # that its memory holds, those of running requests included

    @property
    def slots(self) -> int:
        """Requests that can run at a time."""
        return len(self.step) - 1


def pace_of(
    cost: Cost, shape: ModelShape | None, sessions: list[SessionShape], most: int, profile: Mapping[str, Any] | None
) -> Pace:
    """The pace of a target by its costs; with a profile, drafting included."""
    turns = [turn for session in sessions for turn in session.turns]
    context = sum(turn.prompt + turn.answer / 2 for turn in turns) / len(turns)
    gain, rows = speculation(profile)
    drafting = drafting_for(str(profile["method"]), shape) if profile is not None else None
    tokens = int(profile["num_speculative_tokens"]) if profile is not None else 0
    beside = drafting.memory_bytes(most, context) if drafting is not None else 0.0
    slots = next((n for n in range(most, 0, -1) if cost.fits(n, context, beside)), 0)
    if not slots:
        raise ConfigError(f"no request of {context:.0f} tokens fits beside the weights; use more GPUs (--tp).")
    steps = [0.0]
    for requests in range(1, slots + 1):
        drafts = cost.draft_ms(drafting, requests, tokens, context) if drafting is not None else 0.0
        steps.append((cost.step_ms(requests, rows, context) + drafts) / 1e3)
    each = shape.cache_bytes(context) / context if shape is not None else 0.0
    room = min(1 << 40, int((cost.free_bytes - beside) / each)) if each and cost.free_bytes < 1e30 else ROOM
    return Pace(tuple(steps), cost.read_ms(1000.0) / 1e6, gain, room)


def speculation(profile: Mapping[str, Any] | None) -> tuple[float, float]:
    """Mean tokens and rows per step of one request, counting steps without a draft if their share is known."""
    if profile is None:
        return 1.0, 1.0
    share = float(profile.get("replay", {}).get("share_drafted", 1.0))
    gain = 1 + share * (float(profile["mean_accept_length"]) - 1)
    return gain, 1 + share * int(profile["num_speculative_tokens"])
