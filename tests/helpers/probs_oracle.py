"""What is wrong with the laws that a face of `probabilities` finds, by the slow oracle of the draw."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from draw_oracle import NEAR, NEVER, Oracle, scenario
from torch import Tensor

from augury.kernels import verify
from augury.verify.sampling import Draws, SlotSampling

Face = Callable[[Tensor, Draws, SlotSampling], Tensor]


def wrong_law(law: np.ndarray, oracle: Oracle, token: int) -> str | None:
    """What is wrong with one line's law, if anything; `token` is what draw draws there."""
    p, s = oracle.params, oracle.slot
    if oracle.scores.max() == NEVER or p.temperature[s] == 0:
        return None if law[token] == 1 and np.count_nonzero(law) == 1 else "not certain of the drawn token"
    kept = law > 0
    z = (oracle.scores - oracle.scores.max()) / float(p.temperature[s])
    if (kept & ~oracle.survivors(NEAR)).any():
        return "keeps a token that the filters drop"
    if (oracle.survivors(-NEAR) & (z > -80) & ~kept).any():
        return "drops a token that the filters keep"
    if not kept[token]:
        return "does not hold the drawn token possible"
    weight = np.where(kept, np.exp(z), 0)
    apart = np.abs(law - weight / weight.sum()).max()
    return None if apart < 1e-5 else f"is off by {apart}"


def wrong_laws(face: Face, seeds: Iterable[int]) -> list[str]:
    """Everything that is wrong with a face on some scenarios."""
    found = []
    for seed in seeds:
        logits, draws, params = scenario(seed)
        laws, tokens = face(logits, draws, params).double().numpy(), verify.draw(logits, draws, params).tolist()
        for line, token in enumerate(tokens):
            wrong = wrong_law(laws[line], Oracle(logits, draws, params, line), token)
            found += [f"scenario {seed}, line {line}: {wrong}"] if wrong else []
    return found
