"""Work that n answers share is done once, and what is long is done in slices."""

from __future__ import annotations

import gc
import itertools
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from queued import make_request, make_scheduler

from augury import LLM, SamplingParams
from augury.engine import scoring, turns
from augury.engine.edits import LogitEdits
from augury.engine.state import SlotState
from augury.serve import completions, engine_process, writing
from augury.serve.answers import Answer
from augury.serve.completions import CompletionShape
from augury.serve.engine_process import EngineProcess
from augury.serve.inbox import Inbox
from augury.serve.openai import CompletionRequest
from augury.serve.writing import PIECE, _dumps, pieces

VOCABULARY = 260  # of the toy model


@pytest.fixture(scope="module")
def llm(toy_model: Path) -> LLM:
    return LLM(str(toy_model), device="cpu")


# --- once for n answers ----------------------------------------------------------------------------------------------


def test_bad_words_are_tokenized_once_for_all_prompts_and_answers(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    encode = llm.tokenizer.encode
    monkeypatch.setattr(llm.tokenizer, "encode", lambda text, special=True: calls.append(text) or encode(text, special))
    params = SamplingParams(n=128, bad_words=[f"word{i}" for i in range(64)])
    for prompt in range(8):
        requests = llm.intake.requests(str(prompt), [1, 2, prompt], params)
        assert len({id(request.edits) for request in requests}) == 1
        assert len({id(request.edits.words) for request in requests}) == 1
    assert len(calls) == 2 * 64
    words = [[token for token in line if token >= 0] for line in requests[0].edits.words.tolist()]
    assert words == llm.tokenizer.bad_word_ids(params.bad_words or [])


ids = st.integers(0, VOCABULARY - 1)


@settings(max_examples=60, deadline=None)
@given(
    allowed=st.none() | st.lists(ids, min_size=1, max_size=30),
    bias=st.dictionaries(ids, st.floats(-100, 100), max_size=30),
    words=st.lists(st.lists(ids, min_size=1, max_size=5), max_size=6),
    again=st.lists(st.lists(ids, min_size=1, max_size=7), max_size=3),
)
def test_arrays_say_what_the_lists_say(
    allowed: list[int] | None, bias: dict[int, float], words: list[list[int]], again: list[list[int]]
) -> None:
    """Entry by entry, for a slot that others used before."""
    state = SlotState.allocate(2, 32, 2, 4, VOCABULARY, torch.device("cpu"))
    params = SamplingParams(allowed_token_ids=allowed, logit_bias=bias or None)
    for tokens in (again, words):
        request = make_request(1, [1, 2, 3])
        request.slot, request.params, request.edits = 1, params, LogitEdits.of(params, tokens)
        state.seat(request)
    line = [0.0 if allowed is None or token in allowed else -math.inf for token in range(VOCABULARY)]
    for token, value in bias.items():
        line[token] += torch.tensor(value, dtype=torch.float32).item()
    if allowed is not None or bias:
        assert state.sampling.bias is not None and state.sampling.bias[1].tolist() == line
    assert bool(state.sampling.biased[1]) == (allowed is not None or bool(bias))
    table = [[token for token in word if token >= 0] for word in state.sampling.bad_words[1].tolist()]
    assert [word for word in table if word] == words
    assert all(word[-1] >= 0 for word in state.sampling.bad_words[1].tolist() if any(t >= 0 for t in word))


def test_a_table_grows_seldom() -> None:
    """Each growth outdates every captured graph."""
    state = SlotState.allocate(2, 32, 2, 4, VOCABULARY, torch.device("cpu"))
    for count, length in itertools.product(range(1, 40), range(1, 20)):
        request = make_request(1, [1, 2, 3])
        request.slot, request.edits = 0, LogitEdits.of(SamplingParams(), [[1] * length] * count)
        state.seat(request)
    assert state.version <= 6 + 5


def test_a_prompt_is_scored_once_for_n_answers(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    scored: list[int] = []
    score = scoring._score
    monkeypatch.setattr(scoring, "_score", lambda *given: scored.append(len(given[2])) or score(*given))
    prompt = {"prompt_token_ids": list(range(1, 61))}
    alone, many = (
        llm.generate([prompt], SamplingParams(max_tokens=3, temperature=0, n=n, prompt_logprobs=3), use_tqdm=False)[0]
        for n in (1, 16)
    )
    assert sum(scored) == 2 * 59 and many.prompt_logprobs == alone.prompt_logprobs
    assert {answer.text for answer in many.outputs} == {alone.outputs[0].text}


def scored_choices(n: int, **asked: Any) -> list[dict[str, Any]]:
    """What n answers to a scored prompt of 200 tokens, and to another one, look like."""
    request = CompletionRequest.model_validate({"prompt": "x", "n": n, **asked})
    shape = CompletionShape(request, [[1] * 200, [2] * 200], ["p" * 200, "q" * 200], ["p", "q"])
    prompts = [[None, *([[7, -0.5 * i, 2, text], [8, -0.1, 1, "b"]] for i in range(199))] for text in "pq"]
    own = [[[9, -0.25, 1, "answer"]], [[5, -1.0, 1, "!"]]]
    end = {"reason": "length", "stop": None}
    return [shape.choice(i, Answer("answer!", [9, 5], own, prompts[i // n], end=end)) for i in range(2 * n)]


@pytest.mark.parametrize("asked", [{"echo": True, "logprobs": 2}, {"prompt_logprobs": 2}], ids=str)
def test_a_prompts_scores_are_put_together_and_written_once(asked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[int] = []
    for name in ("completion_logprobs", "prompt_logprobs"):
        build = getattr(completions, name)
        monkeypatch.setattr(completions, name, lambda new, *a, b=build: built.append(len(new)) or b(new, *a))
    alone, many = scored_choices(1, **asked), scored_choices(24, **asked)
    assert [{**choice, "index": 0} for choice in many] == [{**alone[i // 24], "index": 0} for i in range(48)]
    assert sum(built) <= 2 * 400 + 50 * 2  # each prompt once in each of the two, and two tokens an answer
    written: list[int] = []
    dumps = writing._dumps
    monkeypatch.setattr(writing, "_dumps", lambda value: written.append(len(text := dumps(value))) or text)
    assert "".join(pieces({"choices": alone})) == dumps({"choices": alone})
    once = sum(written)
    assert "".join(pieces({"choices": many})) == dumps({"choices": many})
    assert sum(written) - once < 5 * once  # where each is written it is 24 times


# --- what waits ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("newest_first", [True, False])
def test_many_that_leave_at_once_are_found_at_once(newest_first: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    many, looks = 4096, [0]
    scheduler = make_scheduler()
    requests = [make_request(number, [1, 2]) for number in range(many)]
    for request in requests:
        scheduler.add(request)
    arrival = turns._arrival

    def counted(request: Any) -> int:
        looks[0] += 1
        return arrival(request)

    monkeypatch.setattr(turns, "_arrival", counted)
    for request in reversed(requests) if newest_first else requests:
        scheduler.finish(request)
    scheduler.finish(requests[0])  # it has left already
    assert not scheduler.waiting and looks[0] <= (many + 1) * math.ceil(math.log2(many) + 1)


@settings(max_examples=100, deadline=None)
@given(st.permutations(range(12)), st.permutations(range(12)))
def test_whoever_comes_late_waits_in_order(come: list[int], leave: list[int]) -> None:
    scheduler = make_scheduler()
    requests = [make_request(number, [1, 2]) for number in range(12)]
    for number in come:
        scheduler.add(requests[number])
    for gone, number in enumerate(leave):
        assert [request.arrival for request in scheduler.waiting] == sorted(set(range(12)) - set(leave[:gone]))
        scheduler.finish(requests[number])


class Intray:
    """A channel that has messages once, and counts what the engine does between two steps."""

    def __init__(self, messages: list[dict[str, Any]]) -> None:
        self.messages, self.sent = messages, []  # type: ignore[var-annotated]

    def take(self, wait: float) -> list[dict[str, Any]]:
        messages, self.messages = self.messages, []
        return messages

    def send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)


def test_new_jobs_get_a_slice_of_time_between_steps(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes as long as a slice here; those whose clients left are never read."""
    add = {"type": "add", "tokens": [1, 2], "params": {"max_tokens": 1}, "detailed": False, "client": ["", ""]}
    intray = Intray([*({**add, "id": number} for number in range(6)), {"type": "abort", "id": 4}])
    process = EngineProcess(llm, intray)  # type: ignore[arg-type]
    clock = itertools.count(0.0, engine_process.SLICE)
    monkeypatch.setattr(engine_process, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    taken = []
    process._take_messages()  # the first, for nobody runs yet: then it does
    while process.inbox:
        taken.append(len(intray.sent))
        process._take_messages()
    assert [message["id"] for message in intray.sent] == [0, 1, 2, 3, 5]
    assert len(taken) >= 3
    for job in list(process.jobs):
        process._drop(job)
    assert not llm.engine.busy


def test_many_clients_that_leave_at_once_get_a_slice_of_time_too(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    add = {"type": "add", "tokens": [1, 2], "params": {"max_tokens": 8}, "detailed": False, "client": ["", ""]}
    intray = Intray([{**add, "id": number} for number in range(6)])
    process = EngineProcess(llm, intray)  # type: ignore[arg-type]
    process._take_messages()
    while process.inbox:
        process._take_messages()
    clock = itertools.count(0.0, 0.6 * engine_process.SLICE)  # one fits in a slice
    monkeypatch.setattr(engine_process, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    intray.messages = [{"type": "abort", "id": number} for number in range(6)]
    left = []
    while process.jobs:
        process._take_messages()
        left.append(len(process.jobs))
    assert left == [5, 4, 3, 2, 1, 0] and not llm.engine.busy and not process.leaving


def test_a_newcomers_job_is_read_after_one_of_everybody_elses() -> None:
    inbox = Inbox()
    for number in range(128):  # sixteen requests of one key, with eight prompts each
        inbox.add({"id": number, "client": ["a", str(number // 8)]})
    first = inbox.pop()
    inbox.add({"id": 500, "client": ["b", "500"]})
    inbox.add({"id": 501, "client": ["a", "501"]})
    rest = [inbox.pop()["id"] for _ in range(129)]
    assert first["id"] == 0 and rest.index(500) == 1  # another key's
    assert rest.index(501) == 17  # another request of the same key: after one prompt of each of the sixteen
    assert sorted(rest) == [*range(1, 128), 500, 501] and not inbox


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("xyz"), st.booleans()), max_size=40))
def test_no_job_is_lost_in_the_inbox(played: list[tuple[str, str, bool]]) -> None:
    inbox, here = Inbox(), set()
    for number, (key, request, leaves) in enumerate(played):
        inbox.add({"id": number, "client": [key, request]})
        here.add(number)
        if leaves:
            inbox.discard(number // 2)
            here.discard(number // 2)
        assert len(inbox) == len(here)
    assert {inbox.pop()["id"] for _ in range(len(inbox))} == here and not inbox and not inbox._keys


def test_what_is_loaded_is_left_out_of_garbage_collections() -> None:
    try:
        engine_process.freeze()
        assert gc.get_freeze_count() > 10_000 and len(gc.get_objects()) < 10_000
    finally:
        gc.unfreeze()


# --- beside the event loop -------------------------------------------------------------------------------------------

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=200, deadline=None)
@given(values, st.integers(0, 3 * PIECE))
def test_json_in_pieces_is_the_same_json(value: Any, repeats: int) -> None:
    for whole in (value, [value] * repeats, {"choices": [{"scores": [value] * repeats}]}):
        written = list(pieces(whole))
        assert "".join(written) == _dumps(whole)


def test_no_piece_is_long() -> None:
    entry = {str(token): {"logprob": -0.5, "rank": 1, "decoded_token": "token"} for token in range(21)}
    answer = {"choices": [{"index": i, "prompt_logprobs": [entry] * 300} for i in range(2 * PIECE)]}
    assert max(map(len, pieces(answer))) <= (PIECE + 1) * len(_dumps(entry)) < len(_dumps(answer)) / 15
