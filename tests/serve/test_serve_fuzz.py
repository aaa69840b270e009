"""Two thousand bodies that nobody should send: no answer is a 5xx, and the server still answers the next one."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from served import Served, served

BODIES = 2000
ROUTES = ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize")
ODD: list[Any] = [
    None, True, False, 0, -1, 1, 3, 2**31, 2**63, -(2**63) - 1, 10**400, 0.5, -0.0, 1e308, float("nan"), float("inf"),
    "", "x", "<eos>", "\x00", "\ud800", "é" * 50, "a" * 2000, [], [[]], {}, [None], [1, 2], [-5], [256, 257, 10**6],
    ["a", "b"], [[1], [2, 3]], [["a"]], {"a": 1}, {"": ""}, {"65": 5}, {"x": 1.0}, {"999999": 1}, {"enabled": False},
    {"enabled": 3}, {"num_speculative_tokens": 2, "trace": True}, {"method": []}, {"include_usage": True},
    {"type": "json_object"}, {"type": "json_schema", "json_schema": {}}, {"json": {"type": "string"}},
    {"json": {"$ref": "#/nope"}}, {"regex": "(a|"}, {"regex": "[0-9]{1,3}"}, {"choice": []}, {"grammar": "root ::="},
]  # fmt: skip
FIELDS = tuple(
    """
    model prompt messages tokens stream stream_options n max_tokens max_completion_tokens temperature top_p top_k
    min_p presence_penalty frequency_penalty repetition_penalty seed stop stop_token_ids ignore_eos min_tokens
    logit_bias bad_words allowed_token_ids logprobs top_logprobs prompt_logprobs echo best_of suffix speculative
    structured_outputs response_format guided_json guided_regex guided_choice guided_grammar tools tool_choice
    cache_salt kv_transfer_params return_token_ids skip_special_tokens add_special_tokens add_generation_prompt
    continue_final_message chat_template_kwargs user nonsense include_stop_str_in_output
    """.split()
)


def one_body(dice: random.Random) -> bytes:
    """A sound body with a few fields made odd, or its bytes damaged."""
    message = {"role": dice.choice(["user", "system", "tool", "assistant"]), "content": "hi"}
    if dice.random() < 0.3:
        message[dice.choice(["role", "content", "name", "tool_calls", "tool_call_id"])] = dice.choice(ODD)
    body: dict[str, Any] = {"prompt": "ab", "messages": [message], "tokens": [65, 66], "max_tokens": dice.randint(1, 4)}
    for _ in range(dice.choice([0, 1, 1, 2, 3])):
        body[dice.choice(FIELDS)] = dice.choice(ODD)
    raw = bytearray(json.dumps(body).encode())
    if dice.random() < 0.2:
        for _ in range(dice.randint(1, 4)):
            raw[dice.randrange(len(raw))] = dice.randrange(256)
    if dice.random() < 0.05:
        del raw[dice.randrange(len(raw)) :]
    return bytes(raw)


@pytest.fixture(scope="module")
def server(toy_model: Path) -> Iterator[Served]:
    with served(toy_model, "--max-model-len", "64") as running:  # short, for bodies that lose their max_tokens
        yield running


@pytest.mark.slow
def test_malformed_bodies(server: Served) -> None:
    dice = random.Random(7)
    asked = [(dice.choice(ROUTES), one_body(dice)) for _ in range(BODIES)]
    engine = server.engine_pid()

    def send(job: tuple[str, bytes]) -> tuple[int, str]:
        got = server.http.post(job[0], content=job[1], headers={"content-type": "application/json"})
        if got.status_code != 200:
            assert set(got.json()["error"]) == {"message", "type", "param", "code"}
        return got.status_code, got.text

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(send, asked))
    wrong = [(job, answer) for job, answer in zip(asked, answers, strict=True) if answer[0] >= 500]
    assert not wrong, wrong[:3]
    told = Counter(status for status, _ in answers)
    assert told[200] > 100 and told[400] > 500, told
    assert "Traceback" not in server.log
    assert server.engine_pid() == engine  # the same process as before: nothing has killed it
    server.until_idle()
    assert server.metrics()["vllm:kv_cache_usage_perc"] == 0
    assert server.http.post("/v1/completions", json={"prompt": "still there", "max_tokens": 2}).status_code == 200
