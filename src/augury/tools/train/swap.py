"""`augury drafter swap`: loads another drafter into a running server, kept only if acceptance does not fall."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Annotated, Any

import typer

from augury.tools.live.drafting import Drafting
from augury.tools.live.reading import over_all
from augury.tools.live.scrape import scrape
from augury.tools.live.window import whole
from augury.tools.shared.http import Server, Unreadable
from augury.tools.shared.options import Json
from augury.tools.shared.terminal import output_console, print_json
from augury.tools.train.screen import said

GLANCE = 1.0  # seconds between two readings of the counters
SETTLE = 5  # a fifth of the drafts are not counted: running requests still read the old drafter's cache
# An identical drafter should be rolled back at most once in 1,000 swaps. Drafts of one request are correlated, so a
# mean over n of them varies like one over fewer: n / 2.6 (maths) to n / 8.6 (chat, code and maths) for the shipped
# eagle3, K=3, 120 prompts. Treated as independent, at 95 %, it was rolled back in a quarter of such comparisons however
# many drafts were counted. With the numbers below it is in 0.6 of 1,000 with 150 consecutive drafts of one request, the
# worst case; in 0.2 with 2,000; in 2.4 with 20, which are too few for a normal distribution. 500 are enough to tell a
# drafter that predicts nothing right from one that reached 1.4 tokens per step.
ALARM = 3.09  # standard deviations below the mean that occur by chance once in 1,000
TOGETHER = 12.0  # correlated drafts that count as one independent draft
LEAST = 500  # drafts
LOADING = 120.0  # seconds that the server may take to load a drafter
Tell = Callable[[str, int, int], None]


def swap(
    url: Annotated[str, typer.Argument(help="The server, started with --swap-from.")],
    drafter: Annotated[str, typer.Argument(help="The drafter's directory on the server, under --swap-from.")],
    drafts: Annotated[int, typer.Option(min=LEAST, help="Drafts to compare, before and after.")] = 5000,
    within: Annotated[float, typer.Option(min=1, help="Maximum seconds for each comparison.")] = 600.0,
    check: Annotated[bool, typer.Option(help="Compare acceptance, and roll back if it is worse.")] = True,
    api_key: Annotated[str | None, typer.Option(envvar="VLLM_API_KEY", help="The server's key.")] = None,
    as_json: Json = False,
) -> None:
    """Load another drafter into a running server; no request is dropped, and a worse one is rolled back.

    Acceptance is counted on live traffic before and after. The drafter goes back if its acceptance length is lower by
    more than chance explains: an equal one would go back once in 1,000 swaps.
    """
    server = Server(url, api_key, LOADING)
    with said(quiet=as_json) as tell:
        before = count(server, drafts, within, "before", tell) if check else None
        loaded = server.post("/augury/drafter", {"directory": drafter}, LOADING)
        after = _after(server, loaded["drafter"], drafts, within, tell) if check else None
    if after is not None:
        _still_there(server, loaded["drafter"])
    worse = before is not None and after is not None and is_worse(before, after)
    if worse:
        loaded = server.post("/augury/drafter/undo", {}, LOADING)
    found = {
        "drafter": loaded["drafter"],
        "kept": not worse,
        "before": before.record() if before else None,
        "after": after.record() if after else None,
        "noticed": round(least_noticed(before, after), 4) if before and after else None,
    }
    if as_json:
        print_json(found)
    else:
        output_console().print(sentence(found))
    if worse:
        raise typer.Exit(1)


def _after(server: Server, drafter: str, drafts: int, within: float, tell: Tell) -> Drafting:
    """Count with the new drafter; if that fails, roll it back, unless another swap has replaced it."""
    try:
        count(server, max(1, drafts // SETTLE), within, "settling", tell)
        return count(server, drafts, within, "after", tell)
    except (Unreadable, KeyboardInterrupt):
        _still_there(server, drafter)  # a drafter that another swap has loaded must stay
        server.post("/augury/drafter/undo", {}, LOADING)
        raise


def _still_there(server: Server, drafter: str) -> None:
    """Raise Unreadable if another swap has happened meanwhile, because the counts would mix two drafters."""
    now = server.json("/augury/drafter")
    if isinstance(now, dict) and now.get("drafter") != drafter:
        raise Unreadable(
            "swapped",
            f"{server.base}: another swap happened in between; {now.get('drafter')} is now drafting. {drafter} was not "
            "judged.",
        )


def count(server: Server, drafts: int, within: float, words: str, tell: Tell) -> Drafting:
    """Count the acceptance of the server's next `drafts` drafts; Unreadable if there are fewer within the time."""
    first, deadline = _counted(server), time.monotonic() + within
    while True:
        found = _counted(server) - first
        tell(f"{words}: drafts counted", min(drafts, int(found.drafts)), drafts)
        if found.drafts >= drafts:
            return found
        if time.monotonic() > deadline:
            raise Unreadable(
                "idle",
                f"{server.base}: {found.drafts:.0f} drafts in {within:g} seconds, and {drafts} are compared; swap "
                "while there is traffic, lower --drafts, or give --no-check. The previous drafter stays in use.",
            )
        time.sleep(GLANCE)


def _counted(server: Server) -> Drafting:
    reading = over_all(scrape(server))
    if not reading.speculates:
        raise Unreadable("plain", f"{server.base} does not speculate; there is no drafter to swap.")
    return whole(reading)


def is_worse(before: Drafting, after: Drafting) -> bool:
    """Whether acceptance fell by more than chance explains."""
    assert before.length is not None and after.length is not None
    return after.length < before.length - least_noticed(before, after)


def least_noticed(before: Drafting, after: Drafting) -> float:
    """The smallest drop in acceptance length that chance does not explain."""
    return ALARM * math.sqrt(TOGETHER * (before.variance / before.drafts + after.variance / after.drafts))


def sentence(found: dict[str, Any]) -> str:
    """The outcome of the swap in one sentence."""
    if found["before"] is None:
        return f"{found['drafter']} is now drafting; acceptance was not compared."
    a, b = found["before"]["acceptance_length"], found["after"]["acceptance_length"]
    if found["kept"]:
        doubt = (
            ""
            if b >= a
            else f"; with this many drafts only drops of {found['noticed']:.2f} or more can be told from chance"
        )
        return f"{found['drafter']} is now drafting: {b:.2f} tokens per step, {a:.2f} before{doubt}."
    return f"rolled back: {b:.2f} tokens per step, {a:.2f} before. {found['drafter']} is drafting again."
