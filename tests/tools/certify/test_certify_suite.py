"""`augury certify --suite`: a server that keeps its promises is green, and each broken one turns its own cell red."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from promising import Promising, serving

from augury.tools.certify.suite import same_text
from augury.tools.certify.suite.ask import Peer
from augury.tools.certify.suite.cells import GREEN, GREY, RED, Cell, Subject
from augury.tools.certify.suite.identity import identify
from augury.tools.certify.suite.pair import Pair, SuitePlan
from augury.tools.certify.suite.rules import covering
from augury.tools.certify.suite.run import SUITES, run_suites
from augury.tools.knowledge.base import LINTED, knowledge
from augury.tools.shared.endpoint import Endpoint

PLAN = SuitePlan(max_tokens=12, in_flight=3, long_words=300)
SUBJECT = Subject("vLLM", "0.28.0", "toy", "mtp")


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.fixture
def crowd(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Promising], None]]:
    """Tells a server when requests come side by side, which it could only guess from the clock."""
    real = same_text.at_once

    def attach(server: Promising) -> None:
        def told(work: Callable[[Any], Any], every: Sequence[Any]) -> list[Any]:
            server.crowded = True
            try:
                return real(work, every)
            finally:
                server.crowded = False

        monkeypatch.setattr(same_text, "at_once", told)

    yield attach


def certified(
    fast: Promising, plain: Promising | None, plan: SuitePlan = PLAN, subject: Subject = SUBJECT
) -> list[Cell]:
    with serving(fast) as url, serving(plain or Promising()) as baseline:
        peers = [Peer(Endpoint("--url", at), plan.max_tokens) for at in (url, baseline)]
        return run_suites(Pair(peers[0], peers[1] if plain else None, plan), subject, list(SUITES))


def verdicts(cells: list[Cell]) -> dict[str, str]:
    return {cell.suite: cell.verdict for cell in cells}


def test_a_server_that_keeps_its_promises_is_green(crowd: Any) -> None:
    fast = Promising()
    crowd(fast)
    cells = certified(fast, Promising())
    assert verdicts(cells) == dict.fromkeys(SUITES, GREEN), [(cell.suite, cell.reason) for cell in cells]
    figures = {cell.suite: cell.figures for cell in cells}
    assert figures["greedy"]["answers"] == 6 and figures["greedy"]["tokens"] == 72
    assert figures["preemption"]["preemptions"] == 12 and figures["concurrency"]["at_once"] == 3
    assert all(found["drafts"] > 0 for found in figures.values())


BREAKS = {
    "greedy": ("greedy", "plain against speculative: 1 of 6 answers differ, first at token 2"),
    "replay": ("replay", "asked again after others: 6 of 6 answers differ"),
    "chat-stream": ("stream", "chat, whole against streamed: 6 of 12 answers differ"),
    "json": ("json", "no JSON"),
    "schema": ("json", "does not follow its schema"),
    "tools": ("tools", "arguments of a tool call are no JSON"),
    "tools-stream": ("tools", "tool calls differ between whole, streamed"),
    "n": ("n", "are the same, a chance of"),
    "n-count": ("n", "n=4 gave 1 answers, the plain server 4"),
    "logprobs": ("logprobs", "not the likeliest by its own log-probabilities"),
    "logprobs-apart": ("logprobs", "1.00 nats apart between the servers"),
    "long": ("long", "long, plain against speculative: 2 of 4 answers differ"),
    "concurrency": ("concurrency", "alone against 3 at once, whole"),
    "preemption": ("preemption", "alone against 12 at once: 12 of 12"),
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_promise_turns_exactly_its_own_cell_red(name: str, crowd: Any) -> None:
    fast = Promising(name)
    crowd(fast)
    cells = certified(fast, Promising())
    suite, words = BREAKS[name]
    assert verdicts(cells) == {**dict.fromkeys(SUITES, GREEN), suite: RED}
    red = next(cell for cell in cells if cell.suite == suite)
    assert words in red.reason and red.covered
    assert red.evidence["plain_too"] is (None if name in ("greedy", "preemption") else False)


def test_every_suite_has_a_broken_promise() -> None:
    assert {suite for suite, _ in BREAKS.values()} == set(SUITES)


def test_a_stream_that_loses_a_token_shows_alone_and_in_a_crowd(crowd: Any) -> None:
    fast = Promising("stream")
    crowd(fast)
    found = verdicts(certified(fast, Promising()))
    assert {suite for suite, verdict in found.items() if verdict == RED} == {"stream", "concurrency"}


def test_near_ties_are_told_from_wrong_text(crowd: Any) -> None:
    fast, plain = Promising(tie=0.02), Promising(tie=-0.02)
    crowd(fast)
    cells = certified(fast, plain)
    assert verdicts(cells) == dict.fromkeys(SUITES, GREEN)
    assert {cell.suite: cell.figures.get("near_ties") for cell in cells}["greedy"] == 6
    wider = certified(Promising(tie=0.5), Promising(tie=-0.5))  # further than --tolerance
    assert {suite for suite, verdict in verdicts(wider).items() if verdict == RED} >= {"greedy", "replay", "long"}


def test_without_log_probabilities_a_difference_stays_unexplained() -> None:
    fast, plain = Promising(tie=0.02), Promising(tie=-0.02)
    fast.refused = plain.refused = {"logprobs": 400}
    cells = {cell.suite: cell for cell in certified(fast, plain)}
    assert cells["greedy"].verdict == RED and "unexplained" in cells["greedy"].reason
    assert cells["logprobs"].verdict == GREY and "gives no log-probabilities" in cells["logprobs"].reason


def test_what_a_server_does_not_offer_is_grey_with_its_words_and_a_failure_is_red(crowd: Any) -> None:
    fast, plain = Promising(), Promising()
    crowd(fast)
    fast.refused = {"tools": 400, "response_format": 500}
    cells = {cell.suite: cell for cell in certified(fast, plain)}
    assert cells["tools"].verdict == GREY and cells["tools"].reason.endswith("HTTP 400: tools is not for me")
    assert "127.0.0.1" not in cells["tools"].reason  # the reason is the same wherever it listened
    assert cells["json"].verdict == RED and "HTTP 500" in cells["json"].reason
    talks = {cell.suite: cell for cell in certified(Promising("tools-text"), plain)}["tools"]
    assert talks.verdict == GREY and "no parser" in talks.reason


def test_a_promise_that_the_plain_server_breaks_too_is_said_to_be() -> None:
    both = {cell.suite: cell for cell in certified(Promising("json"), Promising("json"))}["json"]
    assert both.verdict == RED and both.evidence["plain_too"] and both.reason.endswith("breaks it too, by itself")


def test_json_that_never_ends_is_not_certified() -> None:
    endless = {cell.suite: cell for cell in certified(Promising("endless"), Promising("endless"))}["json"]
    assert endless.verdict == GREY and "--max-tokens" in endless.reason
    alone = {cell.suite: cell for cell in certified(Promising("endless"), Promising())}["json"]
    assert alone.verdict == RED  # where the plain one ends, it must


def test_both_servers_ignore_n() -> None:
    ignored = {cell.suite: cell for cell in certified(Promising("n-count"), Promising("n-count"))}["n"]
    assert ignored.verdict == GREY and "with and without speculation" in ignored.reason


def test_right_answers_without_drafts_or_preemptions_certify_nothing(crowd: Any) -> None:
    still = certified(Promising("drafts"), Promising())
    assert set(verdicts(still).values()) == {GREY}
    assert sum("drafted nothing" in cell.reason for cell in still) == len(SUITES) - 1
    assert "none was preempted" in still[-1].reason and still[-1].suite == "preemption"
    plainly = certified(Promising("drafts"), None, subject=Subject("vLLM", "0.28.0", "toy", "none"))
    assert verdicts(plainly)["replay"] == GREEN  # a server that does not speculate owes no drafts
    silent = Promising("silent")
    crowd(silent)
    last = certified(silent, Promising())[-1]
    assert last.verdict == GREY and "do not say" in last.reason


def test_one_server_is_held_against_itself(crowd: Any) -> None:
    fast = Promising()
    crowd(fast)
    cells = certified(fast, None)
    assert verdicts(cells) == {**dict.fromkeys(SUITES, GREEN), "greedy": GREY}
    broken = Promising("replay")
    assert verdicts(certified(broken, None))["replay"] == RED


def test_a_server_that_dies_is_red_to_the_end() -> None:
    with serving(Promising()) as url:
        peer = Peer(Endpoint("--url", url), 4)
    cells = run_suites(Pair(peer, None, PLAN), SUBJECT, ["replay", "n"])
    assert [cell.verdict for cell in cells] == [RED, RED] and "refused" in cells[0].reason


def test_rules_come_from_the_knowledge() -> None:
    rules = covering(SUBJECT, "replay")
    assert "hybrid-prefix-cache-text" in rules.possible and not rules.certain
    old = Subject("vLLM", "0.12.0", "toy", "eagle3")
    assert "structured-too-early" in covering(old, "json").certain
    assert "structured-too-early" not in covering(Subject("vLLM", "0.20.0", "toy", "eagle3"), "json").certain
    assert covering(Subject("llama-cpp-python", "0.3", "toy", "prompt-lookup"), "json") == ((), ())
    named = {suite for entry in knowledge(*LINTED).values() for suite in entry.suites}
    assert named <= set(SUITES) and len(named) > 5
    assert all(entry.linted for entry in knowledge().values() if entry.suites)


def test_a_command_tells_the_doctor_more() -> None:
    from augury.tools.certify.suite.rules import facts_of

    command = 'vllm serve Qwen/Qwen3-Next-80B-A3B-Instruct --enable-prefix-caching -sc \'{"method": "mtp", '
    known = facts_of(command + '"num_speculative_tokens": 2}\'')
    assert "hybrid-prefix-cache-text" in covering(SUBJECT, "replay", known).certain
    assert facts_of(None) is None and facts_of("sleep 1") is None


def test_a_server_is_known_by_what_it_says() -> None:
    with serving(Promising(owner="vllm", version="0.31.1")) as url:
        assert identify(Endpoint("--url", url)) == Subject("vLLM", "0.31.1", "toy", "unknown")
        assert identify(Endpoint("--url", url), "eagle3", "0.30").method == "eagle3"
    with serving(Promising("silent", owner="somebody")) as url:
        assert identify(Endpoint("--url", url)) == Subject("unknown", "0.28.0", "toy", "unknown")
