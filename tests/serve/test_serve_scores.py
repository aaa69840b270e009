"""The server on the toy model: scores, and speculation by request."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from serve_cases import CHAT, PROMPTS, spec_metrics, texts
from served import Served

from augury import LLM, SamplingParams
from augury.serve.writing import LARGE


def test_echo_with_scores(client: openai.OpenAI, llm: LLM) -> None:
    wanted = llm.generate(
        "abcab", SamplingParams(max_tokens=4, temperature=0, logprobs=2, prompt_logprobs=2), use_tqdm=False
    )[0]
    got = client.completions.create(
        model="toy", prompt="abcab", max_tokens=4, temperature=0, logprobs=2, echo=True
    ).choices[0]
    assert got.text == "abcab" + wanted.outputs[0].text
    assert got.logprobs is not None
    scores = got.logprobs.token_logprobs or []
    tokens = [*wanted.prompt_token_ids, *wanted.outputs[0].token_ids]
    entries = [*(wanted.prompt_logprobs or []), *(wanted.outputs[0].logprobs or [])]
    assert scores[0] is None and len(scores) == len(tokens)
    for score, token, entry in zip(scores[1:], tokens[1:], entries[1:], strict=True):
        assert entry is not None and score == pytest.approx(entry[token].logprob, abs=1e-4)
    assert (got.logprobs.text_offset or [])[:5] == [0, 1, 2, 3, 4]
    for top, text, score in zip(got.logprobs.top_logprobs or [], got.logprobs.tokens or [], scores, strict=True):
        assert score is None or (2 <= len(top) <= 3 and top[text] == score)


def test_a_long_echo_is_streamed_as_it_is_answered_whole(client: openai.OpenAI) -> None:
    """Its scores are more than are written in the event loop."""
    asked: Any = {"model": "toy", "prompt": "abcd" * 60, "max_tokens": 3, "temperature": 0, "logprobs": 20, "n": 2}
    whole = client.completions.create(echo=True, **asked)
    pieces: list[Any] = [[], []]
    for chunk in client.completions.create(echo=True, stream=True, **asked):
        pieces[chunk.choices[0].index].append(chunk.choices[0])
    for choice, parts in zip(whole.choices, pieces, strict=True):
        assert choice.text == "".join(part.text for part in parts) and choice.logprobs is not None
        assert len(parts[0].logprobs.tokens) * 21 > LARGE
        for name in ("text_offset", "token_logprobs", "tokens", "top_logprobs"):
            joined = [value for part in parts for value in getattr(part.logprobs, name)]
            assert joined == getattr(choice.logprobs, name)


def test_scores_of_parts_of_characters(client: openai.OpenAI, llm: LLM) -> None:
    """Bytes that are no character by themselves all read as U+FFFD; their bytes and keys still tell them apart."""
    ids = [llm.get_tokenizer().encode(c, add_special_tokens=False) for c in "é€"]
    for want in ids:
        only: Any = {"allowed_token_ids": want, "ignore_eos": True}
        asked: Any = {"model": "toy", "max_tokens": 12, "temperature": 1, "seed": 4}
        got = client.chat.completions.create(messages=CHAT, logprobs=True, top_logprobs=2, extra_body=only, **asked)
        scored = got.choices[0].logprobs
        assert scored is not None and scored.content is not None
        spelled = b"".join(bytes(token.bytes or []) for token in scored.content)
        assert spelled.decode("utf-8", "replace") == got.choices[0].message.content
        allowed = {bytes([b]) for b in bytes(llm.get_tokenizer().decode(want), "utf-8")}
        assert {bytes(token.bytes or []) for token in scored.content} <= allowed
        assert all(
            len(t.bytes or []) == 1 for token in scored.content for t in token.top_logprobs if t.token != "<eos>"
        )
        old = client.completions.create(prompt="x", logprobs=2, extra_body=only, **asked).choices[0].logprobs
        assert old is not None and old.top_logprobs and old.tokens and old.token_logprobs
        for top, text, score in zip(old.top_logprobs, old.tokens, old.token_logprobs, strict=True):
            assert 2 <= len(top) <= 3 and top[text] == score
        assert any("token_id:" in key for top in old.top_logprobs for key in top)


def test_a_prompt_can_be_scored_alone(client: openai.OpenAI) -> None:
    got = client.completions.create(model="toy", prompt="abcab", max_tokens=0, logprobs=1, echo=True)
    assert got.choices[0].text == "abcab" and got.usage is not None and got.usage.completion_tokens == 0
    assert got.choices[0].logprobs is not None and len(got.choices[0].logprobs.tokens or []) == 5
    chunks = list(
        client.completions.create(model="toy", prompt="abcab", max_tokens=0, logprobs=1, echo=True, stream=True)
    )
    assert "".join(c.choices[0].text for c in chunks) == "abcab"


def test_chat_scores(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {
        "model": "toy",
        "messages": CHAT,
        "max_tokens": 8,
        "temperature": 0,
        "logprobs": True,
        "top_logprobs": 3,
    }
    got = client.chat.completions.create(**asked).choices[0].logprobs
    assert got is not None and got.content is not None and len(got.content) == 8
    for token in got.content:
        assert len(token.top_logprobs) == 3
        assert token.logprob == max(t.logprob for t in token.top_logprobs)  # greedy takes the likeliest
        assert sum(math.exp(t.logprob) for t in token.top_logprobs) <= 1.0001
    stream = client.chat.completions.create(**asked, stream=True)
    streamed = [t for c in stream if c.choices[0].logprobs for t in c.choices[0].logprobs.content or []]
    assert streamed == got.content


def test_speculation_can_be_switched_for_one_request(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "toy", "prompt": "abcabcabcabc", "max_tokens": 200, "temperature": 0}

    def run(**speculative: Any) -> tuple[str, dict[str, Any]]:
        extra = {"ignore_eos": True, "speculative": speculative}
        got = client.completions.create(**asked, extra_body=extra)
        return got.choices[0].text, spec_metrics(got)

    full, few = run(method="ngram"), run(num_speculative_tokens=1)
    for off in (run(enabled=False), run(num_speculative_tokens=0)):
        assert off[0] == full[0] == few[0]
        assert off[1]["enabled"] is False and "switched it off" in off[1]["why"] and off[1]["num_draft_tokens"] == 0
    assert full[1]["enabled"] and full[1]["num_accepted_draft_tokens"] > 0 and full[1]["num_spec_tokens"] == 4
    assert few[1]["num_draft_tokens"] == few[1]["num_spec_steps"] > 0  # one token each
    assert sum(full[1]["acceptance_histogram"]) == full[1]["num_spec_steps"]
    weighed = sum(j * count for j, count in enumerate(full[1]["acceptance_histogram"]))
    assert weighed == full[1]["num_accepted_draft_tokens"]


def test_offline_requests_say_it_in_extra_args(llm: LLM) -> None:
    for wish, most in (({"enabled": False}, 0), ({"num_speculative_tokens": 2}, 2)):
        params = SamplingParams(max_tokens=60, temperature=0, ignore_eos=True, extra_args={"speculative": wish})
        answer = llm.generate("abcabcabc", params, use_tqdm=False)[0].outputs[0]
        assert answer.text == texts(llm, ["abcabcabc"], max_tokens=60, temperature=0, ignore_eos=True)[0]
        figures = answer.spec_decode_metrics or {}
        assert figures["num_draft_tokens"] <= most * figures["num_spec_steps"] and (most == 0) == (
            figures["num_draft_tokens"] == 0
        )


def test_a_trace_shows_where_each_token_came_from(client: openai.OpenAI) -> None:
    extra = {"ignore_eos": True, "speculative": {"trace": True}, "return_token_ids": True}
    stream = client.completions.create(
        model="toy", prompt="abcabcabcabc", max_tokens=150, temperature=0, stream=True, extra_body=extra
    )
    steps, tokens = [], []
    for chunk in stream:
        steps += chunk.model_extra["augury"]["steps"]  # type: ignore[index]
        tokens += chunk.choices[0].model_extra["token_ids"]  # type: ignore[index]
    assert [t["id"] for step in steps for t in step["tokens"]] == tokens and len(tokens) == 150
    seen = set()
    for step in steps:
        draft, origins = step.get("draft"), [t["from"] for t in step["tokens"]]
        seen.update(origins)
        assert step["ms"] > 0 and step["batch"] >= 1
        if draft is None:
            assert origins == ["plain"]
            continue
        taken = draft["accepted"]
        assert [draft["ids"][node] for node in taken][: len(origins)] == [t["id"] for t in step["tokens"]][: len(taken)]
        assert origins[: len(taken)] == ["draft"] * min(len(taken), len(origins))
        assert len(draft["tokens"]) == len(draft["probs"]) == len(draft["parents"]) == len(draft["ids"])
        assert all(0 <= p <= 1 for p in draft["probs"])
        if len(origins) > len(taken):
            assert origins[-1] == ("plain" if len(taken) == len(draft["ids"]) else "correction")
    assert seen == {"plain", "draft", "correction"}


def test_metrics_are_what_the_engine_counted(client: openai.OpenAI, server: Served) -> None:
    few = {"ignore_eos": True, "allowed_token_ids": [65, 66, 67]}  # so that it repeats itself
    asked: Any = {"model": "toy", "max_tokens": 80, "temperature": 0.5, "seed": 1, "extra_body": few}
    for wish in ({}, {"speculative": {"enabled": False}}):  # alone, both ways: the speed-up compares such steps
        client.completions.create(prompt=PROMPTS[0], **{**asked, "extra_body": few | wish})
    server.until_idle()
    before, live = server.metrics(), server.http.get("/augury/live").json()["totals"]
    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(lambda p: client.completions.create(prompt=p, **asked), PROMPTS))  # type: ignore[arg-type, call-overload]
    server.until_idle()
    after, live_after = server.metrics(), server.http.get("/augury/live").json()["totals"]
    figures = [spec_metrics(d) for d in done]
    told = {
        "num_drafts": sum(f["num_spec_steps"] for f in figures),
        "num_draft_tokens": sum(f["num_draft_tokens"] for f in figures),
        "num_accepted_tokens": sum(f["num_accepted_draft_tokens"] for f in figures),
    }
    for name, value in told.items():
        name = f"vllm:spec_decode_{name}_total"
        assert after[name] - before[name] == value > 0
    position = 'vllm:spec_decode_num_accepted_tokens_per_pos_total{"position": "%d"}'
    rises = [after[position % i] - before[position % i] for i in range(4)]
    assert sum(rises) == told["num_accepted_tokens"] and rises == sorted(rises, reverse=True)
    assert after["vllm:generation_tokens_total"] - before["vllm:generation_tokens_total"] == 320
    ended = 'vllm:request_success_total{"finished_reason": "length"}'
    assert after[ended] - before[ended] == 4
    assert after["vllm:time_to_first_token_seconds_count"] - before["vllm:time_to_first_token_seconds_count"] == 4
    assert after["vllm:e2e_request_latency_seconds_count"] - before["vllm:e2e_request_latency_seconds_count"] == 4
    assert live_after["drafted"] - live["drafted"] == told["num_draft_tokens"]
    assert live_after["tokens"] - live["tokens"] == 320
    assert 0 < after["augury:rejected_share_of_step_time"] < 1 and after["augury:num_speculative_tokens"] == 4
    assert after["augury:lossy_rule"] == 0 and after["augury:speedup_estimate"] > 0
