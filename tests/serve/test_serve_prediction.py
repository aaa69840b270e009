"""OpenAI's `prediction` over HTTP."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from serve_cases import CHAT
from served import Served

WANTED: dict[str, Any] = {"model": "toy", "messages": CHAT, "max_tokens": 40, "temperature": 0}
EOS: Any = {"ignore_eos": True, "allowed_token_ids": list(range(40, 90))}  # answers that are text


def details(usage: Any) -> tuple[int, int]:
    found = usage.completion_tokens_details
    return found.accepted_prediction_tokens, found.rejected_prediction_tokens


def test_a_prediction_saves_passes_and_is_counted(client: openai.OpenAI) -> None:
    plain = client.chat.completions.create(extra_body=EOS, **WANTED)
    assert plain.usage is not None and plain.usage.completion_tokens_details is None
    answer = plain.choices[0].message.content or ""
    for content in (answer, [{"type": "text", "text": answer[:9]}, {"type": "text", "text": answer[9:] + "zz"}]):
        expected: Any = {"type": "content", "content": content}
        got = client.chat.completions.create(extra_body=EOS, prediction=expected, **WANTED)
        assert got.choices[0].message.content == answer and got.usage is not None
        assert details(got.usage) == (40, 2 * isinstance(content, list))
        assert got.usage.completion_tokens == 40
        by_drafter = got.model_extra["metrics"]["speculative_decoding"]["by_drafter"]  # type: ignore[index]
        assert by_drafter["prediction"]["num_accepted_draft_tokens"] >= 30


def test_streams_and_several_answers(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(extra_body=EOS, **WANTED).choices[0].message.content
    expected: Any = {"type": "content", "content": answer}
    options: Any = {"stream": True, "stream_options": {"include_usage": True}}
    *chunks, last = client.chat.completions.create(extra_body=EOS, prediction=expected, **WANTED, **options)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == answer
    assert details(last.usage) == (40, 0)
    several = client.chat.completions.create(extra_body=EOS, prediction=expected, n=3, **WANTED)
    assert [choice.message.content for choice in several.choices] == [answer] * 3
    assert details(several.usage) == (120, 0)


def test_completions_take_it_too(client: openai.OpenAI) -> None:
    asked: Any = {"model": "toy", "prompt": "abc", "max_tokens": 40, "temperature": 0}
    answer = client.completions.create(extra_body=EOS, **asked).choices[0].text
    got = client.completions.create(extra_body={**EOS, "prediction": {"type": "content", "content": answer}}, **asked)
    assert got.choices[0].text == answer and details(got.usage) == (40, 0)


@pytest.mark.parametrize(
    ("prediction", "says"),
    [
        ("text", "prediction"),
        ({"type": "file", "content": "x"}, "prediction"),
        ({"type": "content"}, "prediction"),
        ({"type": "content", "content": 3}, "prediction"),
        ({"type": "content", "content": "x", "more": 1}, "prediction"),
        ({"type": "content", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}, "prediction"),
        ({"type": "content", "content": "x" * 100_000}, "max_model_len"),
        ({"type": "content", "content": "a\ud800b"}, "surrogate"),
    ],
)
def test_bad_predictions_are_refused_by_name(server: Served, prediction: Any, says: str) -> None:
    body = {**WANTED, "prediction": prediction}
    kind = {"content-type": "application/json"}
    got = server.http.post("/v1/chat/completions", content=json.dumps(body), headers=kind)  # ASCII, surrogates too
    assert got.status_code == 400
    error = got.json()["error"]
    assert error["param"].startswith("prediction") and says in error["message"]


def test_parts_are_counted_by_name(server: Served, client: openai.OpenAI) -> None:
    expected: Any = {"type": "content", "content": client.chat.completions.create(**WANTED).choices[0].message.content}
    client.chat.completions.create(prediction=expected, **WANTED)
    text = server.http.get("/metrics").text
    for what in ("draft", "accepted"):
        assert f"augury:spec_decode_num_{what}_tokens_by_drafter_total{{" in text
    assert 'drafter="prediction"' in text
