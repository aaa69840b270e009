"""Remarks that a reader needs to interpret a check's figures."""

from __future__ import annotations

from augury.tools.live.checks import Judged
from augury.tools.live.drafting import MANY
from augury.tools.live.expectation import YOURS
from augury.tools.live.reading import ACCEPTED_AT


def remarks(judged: Judged) -> list[str]:
    """The remarks on one model's figures."""
    window, said = judged.window, []
    if window.restarted:
        said.append(
            "counters fell during the interval: the server restarted, or a load balancer alternates between two; "
            "figures are since the start"
        )
    elif window.idle:
        said.append(f"no traffic in the interval ({window.seconds:.3g} s); figures are since the start")
    elif window.since_start and window.seconds and window.drafting.drafts:
        few = window.in_interval.drafts
        said.append(f"{few:.0f} drafts in the interval are too few to judge; acceptance is since the start")
    if window.probes and window.in_interval.drafts:
        said.append(
            f"{window.probes} probes were sent: the {window.in_interval.drafts:.0f} drafts of the interval are theirs, "
            "or of traffic meanwhile; what is since the start leaves them out"
        )
    if 0 < window.drafting.drafts < MANY:
        said.append(f"only {window.drafting.drafts:.0f} drafts so far; too few to judge")
    if "past_differs" in judged.facts:
        said.append(f"the baseline is of {judged.facts['past_differs']}, so that its acceptance is not compared")
    if window.after.speculates and not window.after.accepted_at:
        said.append(f"{ACCEPTED_AT} is missing, so the shape of acceptance cannot be judged")
    if window.drafting.drafts and judged.expected.where and judged.expected.where != YOURS:
        said.append(f"band of {judged.expected.method}: {judged.expected.where}")
    if not judged.facts["counters_impossible"] and window.drafting.varies and window.drafting.fair is None:
        said.append("drafts differ in length, so late positions look worse than they are (vLLM divides by all drafts)")
    return said
