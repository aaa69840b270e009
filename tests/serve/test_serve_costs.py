"""Small requests that stalled everyone: what a request may ask for is bounded by cost, and refused by name."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError
from served import Served, served

from augury.model.tokenizer import Tokenizer
from augury.serve import openai
from augury.serve.costs import PARAMETERS, PROMPT_SCORES, Scores, check_parameters
from augury.serve.errors import ApiError
from augury.serve.jobs import ANSWERS, check_room
from augury.serve.openai import BARRED, MOST_UNKNOWN, ChatRequest, CompletionRequest
from augury.serve.prompts import SHORT, WAITING, Prompts
from augury.serve.shares import Shares

VOCABULARY = 260  # of the toy model


@pytest.fixture(scope="module")
def server(toy_model: Path) -> Iterator[Served]:
    with served(toy_model) as running:
        yield running


@pytest.mark.parametrize("stream", [False, True])
def test_every_answer_has_the_prompts_scores(server: Served, stream: bool) -> None:
    prompts = ["score me", "and me, please"]
    body = {"prompt": prompts, "n": 3, "max_tokens": 4, "temperature": 0, "echo": True, "logprobs": 2}
    got = server.http.post("/v1/completions", json={**body, "stream": stream})
    assert got.status_code == 200, got.text
    if stream:
        events = [json.loads(line[6:]) for line in got.text.splitlines() if line.startswith("data: {")]
        choices = [choice for event in events for choice in event["choices"]]
    else:
        choices = got.json()["choices"]
    for index in range(6):
        prompt = prompts[index // 3]
        mine = [choice for choice in choices if choice["index"] == index]
        tokens = list(itertools.chain(*(choice["logprobs"]["tokens"] for choice in mine)))
        scores = list(itertools.chain(*(choice["logprobs"]["token_logprobs"] for choice in mine)))
        assert len(tokens) == len(prompt) + 4 and "".join(tokens).startswith(prompt)
        assert scores[0] is None and all(isinstance(score, float) for score in scores[1:])
        assert "".join(choice["text"] for choice in mine) == "".join(tokens)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a map longer than the vocabulary": ({"logit_bias": {str(i): 1 for i in range(300)}}, "logit_bias"),
    "a million repeats": ({"allowed_token_ids": [1] * 1_000_000}, "allowed_token_ids"),
    "long words": ({"bad_words": ["w" * 127] * 100}, "bad_words"),
    "scores of many answers": ({"prompt": "x" * 200, "n": 128, "prompt_logprobs": 20}, "prompt_logprobs"),
    "scores of many prompts": ({"prompt": ["x" * 200] * 64, "prompt_logprobs": 20}, "prompt_logprobs"),
    "scores of an echo": ({"prompt": "x" * 400, "n": 128, "echo": True, "logprobs": 20}, "logprobs"),
    "20,000 fields": ({f"field{i}": 1 for i in range(20_000)}, "field0"),
    "wrong types": ({"prompt": [1, "a"] * 100_000}, "prompt"),
    "wrong entries": ({"logit_bias": {f"a{i}": "b" for i in range(50_000)}}, "logit_bias"),
    "prompts with long lists": (
        {"prompt": ["x"] * 1024, "structured_outputs": {"json": {"description": "d" * 20_000}}},
        "prompt",
    ),
}


@pytest.mark.parametrize(("body", "field"), REFUSED.values(), ids=REFUSED)
def test_what_costs_too_much_is_refused_by_name(server: Served, body: dict[str, Any], field: str) -> None:
    got = server.http.post("/v1/completions", json={"prompt": "x", "max_tokens": 1, **body})
    error = got.json()["error"]
    assert got.status_code == 400 and error["param"] == field, got.text[:300]
    assert len(got.content) < 1500 and field in error["message"]


def test_what_is_legal_still_works(server: Served) -> None:
    bodies = [
        {"logit_bias": {str(i): 1 for i in range(VOCABULARY)}, "n": 64},
        {"allowed_token_ids": [5] * VOCABULARY, "n": 64},
        {"bad_words": ["w" * 64] * (BARRED // 64), "n": 16},
        {"prompt": "x" * 60, "n": 8, "prompt_logprobs": 20},
        {f"vendor{i}x": 1 for i in range(MOST_UNKNOWN)},
    ]
    for body in bodies:
        got = server.http.post("/v1/completions", json={"prompt": "x", "max_tokens": 2, **body})
        assert got.status_code == 200, got.text[:300]
    body = {"prompt": "x" * 60, "n": 8, "max_tokens": 2, "prompt_logprobs": 20}
    whole = server.http.post("/v1/completions", json=body)
    scores = [choice["prompt_logprobs"] for choice in whole.json()["choices"]]
    assert len(scores) == 8 and all(one == scores[0] and len(one) == 60 for one in scores)


@pytest.mark.parametrize("many", [10, 100_000])
@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (CompletionRequest, lambda many: {"prompt": [1, "a"] * many}),
        (CompletionRequest, lambda many: {"prompt": [[1], "a"] * many}),
        (CompletionRequest, lambda many: {"prompt": "x", "stop": [1] * many}),
        (CompletionRequest, lambda many: {"prompt": "x", "bad_words": [1] * many}),
        (CompletionRequest, lambda many: {"prompt": "x", "allowed_token_ids": ["a"] * many}),
        (CompletionRequest, lambda many: {"prompt": "x", "stop_token_ids": ["a"] * many}),
        (CompletionRequest, lambda many: {"prompt": "x", "guided_choice": [1] * many}),
        (CompletionRequest, lambda many: {"prompt": "x", "logit_bias": {f"a{i}": 1 for i in range(many)}}),
        (ChatRequest, lambda many: {"messages": [{"role": "nobody"}] * many}),
        (ChatRequest, lambda many: {"messages": [{"role": "user", "content": [1] * many}]}),
        (ChatRequest, lambda many: {"messages": [{"role": "user", "tool_calls": [1] * many}]}),
        (ChatRequest, lambda many: {"messages": [{"role": "user"}], "tools": [1] * many}),
    ],
)
def test_the_first_error_is_the_last_that_is_looked_for(kind: Any, body: Any, many: int) -> None:
    with pytest.raises(ValidationError) as caught:
        kind.model_validate(body(many))
    assert caught.value.error_count() <= 4  # one for each form that the field may have


def test_misspellings_are_looked_for_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    monkeypatch.setattr(openai, "get_close_matches", lambda name, *_, **__: looked.append(name) or [])
    request = CompletionRequest.model_validate({"prompt": "x", **{f"f{i}": 1 for i in range(60)}, "g" * 10**6: 1})
    request.check()
    assert len(looked) == 60
    with pytest.raises(ApiError, match="20000 fields"):
        CompletionRequest.model_validate({"prompt": "x", **{f"f{i}": 1 for i in range(20_000)}}).check()
    assert len(looked) == 60


def test_parameters_add_up_over_prompts() -> None:
    params = {"structured_outputs": {"json": "x" * (PARAMETERS // 8)}}
    check_parameters(params, 1)
    check_parameters(params, 7)
    with pytest.raises(ApiError, match="8 prompts"):
        check_parameters(params, 8)


def test_all_log_probabilities_together_are_bounded() -> None:
    scores = Scores(2 * PROMPT_SCORES)
    scores.take(PROMPT_SCORES)
    scores.take(PROMPT_SCORES)
    with pytest.raises(ApiError) as caught:
        scores.take(1)
    scores.give(PROMPT_SCORES)
    scores.take(PROMPT_SCORES)
    assert caught.value.status == 429 and scores.held.total() == 2 * PROMPT_SCORES


def test_answers_at_a_time_are_bounded() -> None:
    batch, shares = SimpleNamespace(client=""), Shares(ANSWERS)
    jobs: list[Any] = [SimpleNamespace(n=128, ended=set(range(28)), batch=batch) for _ in range(ANSWERS // 100)]
    check_room(jobs, shares, "", ANSWERS % 100)
    with pytest.raises(ApiError, match="limit of 16384") as caught:
        check_room(jobs, shares, "", ANSWERS % 100 + 1)
    assert caught.value.status == 429


def test_texts_that_are_only_tokenized_wait_for_themselves(toy_model: Path) -> None:
    """A long one that does not end: others are refused beyond a limit, and prompts to run do not wait."""
    hold = threading.Event()

    class Slow(Tokenizer):
        def encode(self, text: str, special: bool = True) -> list[int]:
            if text[0] == "s":
                hold.wait(60)
            return super().encode(text, special)

    async def play() -> None:
        prompts = Prompts(Slow(toy_model), 1 << 17)
        most = prompts.lengths.tokenized
        slow = [asyncio.create_task(prompts.encode("s" * most, False, to_run=False)) for _ in range(WAITING)]
        await asyncio.sleep(0)
        with pytest.raises(ApiError) as caught:
            await prompts.encode("t" * (SHORT + 1), False, to_run=False)
        assert caught.value.status == 429
        assert len(await prompts.encode("t" * (SHORT + 1), False)) == SHORT + 1  # to be run
        assert len(await prompts.encode("t", False, to_run=False)) == 1
        slow[1].cancel()  # its client left; it waits in the thread all the same
        hold.set()
        await asyncio.gather(*slow, return_exceptions=True)
        assert len(await prompts.encode("t" * most, False, to_run=False)) == most
        with pytest.raises(ApiError, match=f"at most {most}"):
            await prompts.encode("t" * (most + 1), False, to_run=False)

    asyncio.run(play())
