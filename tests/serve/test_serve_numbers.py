"""Numbers of any size are refused at the door, by the name of their field, before a part of the server computes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from served import Served

from augury.config.errors import ConfigError
from augury.config.sampling import MOST, SamplingParams
from augury.serve.errors import ApiError
from augury.serve.openai import ChatRequest, CompletionRequest, Generation

NINES = int("9" * 309)
CHAT = {"messages": [{"role": "user", "content": "x"}], "logprobs": True}
FIELDS = """
    n max_tokens temperature top_p top_k min_p presence_penalty frequency_penalty repetition_penalty seed min_tokens
    prompt_logprobs logprobs best_of stop_token_ids allowed_token_ids logit_bias
""".split()
huge = st.integers(NINES, NINES**3) | st.sampled_from([float("inf"), float("nan")])


def refused(kind: type[Generation], body: dict[str, Any]) -> str | None:
    """The field that a body is refused for, before anything of it reaches the engine."""
    try:
        asked: Any = kind.model_validate(body)
        asked.check()
        asked.parameters(max_tokens=asked.max_tokens)
    except ValidationError as error:
        return str(error.errors()[0]["loc"][0])
    except ApiError as error:
        return error.param
    return None


@pytest.mark.parametrize("field", FIELDS)
@settings(max_examples=30, deadline=None, derandomize=True)
@given(value=huge, negative=st.booleans())
def test_a_number_out_of_all_range_is_refused_by_its_field(field: str, value: Any, negative: bool) -> None:
    number = -value if negative else value
    given = [number] if field.endswith("_ids") else {"1": number} if field == "logit_bias" else number
    assert refused(CompletionRequest, {"prompt": "x", field: given}) == field


@pytest.mark.parametrize("field", ["max_completion_tokens", "max_tokens", "top_logprobs"])
def test_the_fields_of_chats(field: str) -> None:
    assert [refused(ChatRequest, {**CHAT, field: value}) for value in (NINES, -NINES, MOST + 1)] == [field] * 3


def test_a_token_id_out_of_all_range_is_refused_as_a_key() -> None:
    assert refused(CompletionRequest, {"prompt": "x", "logit_bias": {str(NINES): 1}}) == "logit_bias"


def test_the_longest_answer_that_can_be_asked_for() -> None:
    assert refused(CompletionRequest, {"prompt": "x", "max_tokens": MOST}) is None
    assert refused(CompletionRequest, {"prompt": "x", "max_tokens": MOST + 1}) == "max_tokens"


@pytest.mark.parametrize("field", ["max_tokens", "temperature", "repetition_penalty", "top_k", "seed", "logprobs"])
def test_offline_too(field: str) -> None:
    with pytest.raises(ConfigError, match=f"^{field} must be"):
        SamplingParams(**{field: NINES})


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("route", ["completions", "chat/completions"])
def test_the_request_that_disabled_the_server(server: Served, route: str, stream: bool) -> None:
    engine = server.engine_pid()
    text = json.dumps({"prompt": "x", "messages": CHAT["messages"], "stream": stream, "max_tokens": NINES})
    got = server.http.post(f"/v1/{route}", content=text, headers={"Content-Type": "application/json"})
    assert got.status_code == 400 and got.json()["error"]["param"] == "max_tokens", got.text
    assert str(MOST) in got.json()["error"]["message"]
    most = server.http.post("/v1/completions", json={"prompt": "x", "max_tokens": MOST})
    assert most.status_code == 200, most.text
    assert server.http.get("/health").status_code == 200 and server.engine_pid() == engine
