"""Steps of an engine that leave no pass under way, so that a test may look at what they left."""

from __future__ import annotations

from augury.engine.commit import Update
from augury.engine.engine import Engine


def whole_step(engine: Engine) -> list[Update]:
    """One step, and the pass it launched with it: on a GPU a step ends before its own pass does."""
    updates = engine.step()
    while engine.flights:
        updates += engine.land()
    return updates
