"""The engine on a toy model: however it is batched, cached, chunked, preempted or drafted, the text is the reference's.

AUGURY_TEST_DEVICE=cuda runs the same on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import reference
import torch
from generating import DEVICE, PROMPTS, held_to_plain, ids
from random_trees import RandomTrees
from torch import Tensor

from augury import LLM, SamplingParams
from augury.config.errors import ConfigError

NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3, "prompt_lookup_min": 1}


@pytest.fixture(scope="module")
def oracle(toy_model: Path) -> Callable[[list[int]], Tensor]:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(toy_model)

    @torch.inference_mode()
    def logits(tokens: list[int]) -> Tensor:
        return model(torch.tensor([tokens])).logits[0, -1].float()

    return logits


@pytest.fixture(scope="module")
def plain(toy_model: Path) -> LLM:
    return LLM(str(toy_model), device=DEVICE, max_model_len=256)


@pytest.fixture(scope="module")
def ngram(toy_model: Path) -> LLM:
    return LLM(str(toy_model), device=DEVICE, max_model_len=256, speculative_config=NGRAM)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_text_is_the_references(plain: LLM, ngram: LLM, oracle: Callable, temperature: float) -> None:
    prompts = PROMPTS[:3]
    params = SamplingParams(temperature=temperature, seed=11, max_tokens=24, ignore_eos=True)
    want = [reference.decode(oracle, plain.tokenizer.encode(p), 24, temperature, 11)[0] for p in prompts]
    assert ids(plain, prompts, params) == want
    assert ids(ngram, prompts, params) == want
    assert ngram.engine.stats.spec.num_accepted_tokens > 0 or temperature > 0


@pytest.mark.parametrize(
    "settings",
    [
        {"max_num_seqs": 1},
        {"max_num_seqs": 3},
        {"long_prefill_token_threshold": 7},
        {"max_num_batched_tokens": 8, "max_num_seqs": 8},
        {"num_gpu_blocks_override": 12, "block_size": 8, "max_model_len": 88},  # preempts
        {"block_size": 1},
        {"enable_prefix_caching": False},
        {"model_impl": "adapter"},
    ],
    ids=lambda s: ",".join(f"{k}={v}" for k, v in s.items()),
)
def test_text_does_not_depend_on_how_it_was_served(toy_model: Path, plain: LLM, settings: dict) -> None:
    llm = LLM(str(toy_model), device=DEVICE, **{"max_model_len": 256, "speculative_config": NGRAM, **settings})
    held_to_plain(llm, plain, PROMPTS, temperature=1.0, length=40)
    if "num_gpu_blocks_override" in settings:
        assert llm.engine.stats.preemptions > 0
    if settings.get("enable_prefix_caching", True) and "num_gpu_blocks_override" not in settings:
        assert llm.engine.stats.prefix_cache_hits > 0


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_random_trees_change_nothing_but_the_number_of_passes(toy_model: Path, plain: LLM, temperature: float) -> None:
    params = [SamplingParams(temperature=temperature, seed=i, max_tokens=60, ignore_eos=True) for i in range(8)]
    want = ids(plain, PROMPTS, params)
    wide = {**NGRAM, "num_speculative_tokens": 12}
    llm = LLM(str(toy_model), device=DEVICE, max_model_len=256, speculative_config=wide)
    truth = {i: [*plain.tokenizer.encode(p), *w] for i, (p, w) in enumerate(zip(PROMPTS, want, strict=True))}
    llm.engine.runner.drafter = RandomTrees(12, truth)
    assert ids(llm, PROMPTS, params) == want
    spec = llm.engine.stats.spec
    assert spec.num_accepted_tokens > 100 and llm.engine.stats.steps < 55
    assert ids(llm, PROMPTS, params) == want  # what the trees left in the prefix cache is sound


def test_drafting_pauses_while_many_run(toy_model: Path, plain: LLM) -> None:
    """`disable_by_batch_size` as of old, the table of today: with more than two requests nobody drafts."""
    spec = {**NGRAM, "disable_by_batch_size": 2}
    gentle = LLM(str(toy_model), device=DEVICE, max_model_len=256, speculative_config=spec)
    params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    assert ids(gentle, PROMPTS[:4], params) == ids(plain, PROMPTS[:4], params)
    assert gentle.engine.stats.spec.num_drafts == 0
    assert ids(gentle, PROMPTS[:2], params) == ids(plain, PROMPTS[:2], params)
    assert gentle.engine.stats.spec.num_drafts > 0


CASES = {
    "top_k": {"top_k": 5},
    "top_p": {"top_p": 0.6},
    "min_p": {"min_p": 0.1},
    "all": {"top_k": 20, "top_p": 0.9, "min_p": 0.01},
    "repetition": {"repetition_penalty": 1.7},
    "presence": {"presence_penalty": 1.5},
    "frequency": {"frequency_penalty": 0.9},
    "bias": {"logit_bias": {97: 4.0, 98: -100.0}},
    "allowed": {"allowed_token_ids": [97, 98, 99, 100, 256]},
    "min_tokens": {"min_tokens": 12, "stop_token_ids": list(range(60, 130)), "ignore_eos": False},
    "bad_words": {"bad_words": list("abcdefghijklmnop")},
    "stop": {"stop": ["a", "}"], "ignore_eos": False},
}


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("case", CASES)
def test_every_parameter_works_at_every_drafted_position(
    plain: LLM, ngram: LLM, toy_model: Path, case: str, temperature: float
) -> None:
    options = {"ignore_eos": True, "max_tokens": 40, "temperature": temperature, **CASES[case]}
    params = [SamplingParams(seed=i, **options) for i in range(len(PROMPTS))]
    want = [
        (o.outputs[0].text, o.outputs[0].token_ids, o.outputs[0].stop_reason)
        for o in plain.generate(PROMPTS, params, use_tqdm=False)
    ]
    got = [
        (o.outputs[0].text, o.outputs[0].token_ids, o.outputs[0].stop_reason)
        for o in ngram.generate(PROMPTS, params, use_tqdm=False)
    ]
    assert got == want
    unmodified = SamplingParams(temperature=temperature, seed=0, max_tokens=40, ignore_eos=True)
    if case not in ("stop", "min_tokens") and not (temperature == 0 and case in ("top_k", "top_p", "min_p", "all")):
        assert want[0][1] != ids(plain, PROMPTS[:1], unmodified)[0], "the parameter did nothing: the test is blind"


def test_barred_tokens_and_words_never_appear(ngram: LLM) -> None:
    params = SamplingParams(
        temperature=1.0,
        seed=3,
        max_tokens=60,
        bad_words=["ab"],
        ignore_eos=True,
        allowed_token_ids=[97, 98, 99],
        logit_bias={99: -100},
    )
    alphabet = ngram.tokenizer.encode("ab")
    params.allowed_token_ids = [*alphabet, *ngram.tokenizer.encode("c")]
    params.logit_bias = {params.allowed_token_ids[2]: -100}
    texts = [o.outputs[0].text for o in ngram.generate(PROMPTS, params, use_tqdm=False)]
    assert all(set(t) <= set("ab") and "ab" not in t for t in texts)
    assert any("b" in t for t in texts)


def test_min_tokens_then_stop(plain: LLM, ngram: LLM) -> None:
    everything = list(range(256))
    for llm in (plain, ngram):
        params = SamplingParams(temperature=0, max_tokens=30, min_tokens=9, stop_token_ids=everything[:200])
        for output in llm.generate(PROMPTS, params, use_tqdm=False):
            answer = output.outputs[0]
            assert len(answer.token_ids) > 9 and all(t >= 200 for t in answer.token_ids[:9])
            assert answer.finish_reason == "stop" and answer.stop_reason == answer.token_ids[-1]


def test_stop_strings_cut_the_text(plain: LLM, ngram: LLM) -> None:
    letters = {"allowed_token_ids": list(range(64, 90)), "temperature": 0, "max_tokens": 40, "ignore_eos": True}
    text = plain.generate("abcabc", SamplingParams(**letters), use_tqdm=False)[0].outputs[0].text
    stop = text[20:23]
    for llm in (plain, ngram):
        for keep in (False, True):
            params = SamplingParams(stop=stop, include_stop_str_in_output=keep, **letters)
            answer = llm.generate("abcabc", params, use_tqdm=False)[0].outputs[0]
            assert answer.text == text[: text.index(stop) + (len(stop) if keep else 0)]
            assert answer.finish_reason == "stop" and answer.stop_reason == stop


@pytest.mark.parametrize("which", ["plain", "ngram"])
def test_logprobs_are_the_raw_models(request: pytest.FixtureRequest, which: str, oracle: Callable) -> None:
    llm: LLM = request.getfixturevalue(which)
    params = SamplingParams(temperature=0.5, seed=4, max_tokens=12, logprobs=3, prompt_logprobs=2, ignore_eos=True)
    output = llm.generate("hello hello", params, use_tqdm=False)[0]
    prompt, answer = output.prompt_token_ids, output.outputs[0]
    assert answer.logprobs and len(answer.logprobs) == 12 and output.prompt_logprobs
    total = 0.0
    for i, (token, entry) in enumerate(zip(answer.token_ids, answer.logprobs, strict=True)):
        want = oracle(prompt + answer.token_ids[:i]).log_softmax(-1)
        assert entry[token].logprob == pytest.approx(float(want[token]), abs=1e-3)
        assert entry[token].rank == int((want >= want[token]).sum())
        assert set(want.topk(3).indices.tolist()) <= set(entry) and entry[token].decoded_token is not None
        total += entry[token].logprob
    assert answer.cumulative_logprob == pytest.approx(total)
    assert output.prompt_logprobs[0] is None and len(output.prompt_logprobs) == len(prompt)
    for i, scored in enumerate(output.prompt_logprobs[1:], start=1):
        want = oracle(prompt[:i]).log_softmax(-1)
        assert scored and scored[prompt[i]].logprob == pytest.approx(float(want[prompt[i]]), abs=1e-3)


def test_n_answers_differ_and_repeat(ngram: LLM) -> None:
    params = SamplingParams(n=3, temperature=1.0, seed=5, max_tokens=16, ignore_eos=True)
    first, second = (ngram.generate("hello", params, use_tqdm=False)[0] for _ in range(2))
    assert [o.index for o in first.outputs] == [0, 1, 2]
    assert len({tuple(o.token_ids) for o in first.outputs}) == 3
    assert [o.token_ids for o in first.outputs] == [o.token_ids for o in second.outputs]


def test_one_bad_request_is_one_bad_response(ngram: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    good = SamplingParams(temperature=0, max_tokens=4)
    bad_prompts = [{"prompt_token_ids": [1, 2, 9999]}, "x" * 300, {"prompt_token_ids": []}, {"wrong": 1}, 3.5]
    outputs = ngram.generate(["abc", *bad_prompts, "abc"], good, use_tqdm=False)
    assert outputs[0].outputs[0].token_ids == outputs[-1].outputs[0].token_ids and outputs[0].error is None
    words = ["9999", "max_model_len", "empty", "prompt_token_ids", "float"]
    for output, word in zip(outputs[1:-1], words, strict=True):
        assert output.error and word in output.error and "\n" not in output.error
        assert output.outputs[0].finish_reason == "error"
    assert capsys.readouterr().err.count("refused") == 5
    with pytest.raises(ConfigError, match="9999"):
        ngram.generate(bad_prompts[0], good, use_tqdm=False)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda llm: llm.generate(5), "prompts must be"),
        (lambda llm: llm.generate(None), "prompts must be"),
        (lambda llm: llm.generate("a", {"temperature": 0}), "SamplingParams"),
        (lambda llm: llm.generate("a", lora_request=object()), "lora_request"),
        (lambda llm: llm.generate("a\ud83d"), "surrogate"),
        (lambda llm: llm.chat("hi"), "conversation"),
        (lambda llm: llm.chat([{"content": "hi"}]), "role"),
        (lambda llm: llm.chat([{"role": "user", "content": [{"type": "image_url"}]}]), "text parts"),
        (lambda llm: llm.generate({"prompt": "a", "multi_modal_data": {"image": 1}}), "multi_modal_data"),
    ],
)
def test_bad_calls_say_what_to_write(ngram: LLM, call: Callable, words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        call(ngram)
    assert "\n" not in str(caught.value)


def test_text_parts_are_joined(ngram: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=4)
    parts = [{"type": "text", "text": "ab"}, {"type": "text", "text": "c"}]
    outputs = ngram.chat([[{"role": "user", "content": c}] for c in (parts, "abc")], params, use_tqdm=False)
    assert outputs[0].prompt_token_ids == outputs[1].prompt_token_ids


def test_a_tenants_prompts_are_found_again_by_itself_alone(toy_model: Path) -> None:
    llm = LLM(str(toy_model), device="cpu", max_model_len=256, block_size=4)

    def cached(tenant: str) -> int:
        params = SamplingParams(temperature=0, max_tokens=4, extra_args={"cache_salt": tenant} if tenant else None)
        return llm.generate(["a prompt of some length"], params, use_tqdm=False)[0].num_cached_tokens

    found = [cached(tenant) > 0 for tenant in ("", "", "one", "one", "two", "")]
    assert found == [False, True, False, True, False, True]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"max_model_length": 5}, "did you mean 'max_model_len'"),
        ({"max_model_len": 100000}, "max_model_len"),
        ({"max_model_len": 0}, "max_model_len"),
        ({"tensor_parallel_size": 3}, "tensor_parallel_size=3 cannot divide 4 attention heads"),
        ({"device": "gpu9"}, "device"),
        ({"device": "cpu", "dtype": "float16"}, "float16"),
        ({"max_num_batched_tokens": 2, "max_num_seqs": 8}, "max_num_batched_tokens"),
        ({"num_gpu_blocks_override": 4, "max_model_len": 256}, "KV cache"),
        ({"kv_cache_memory_bytes": 1}, "even one block of tokens needs more KV cache"),
        ({"speculative_config": {"method": "ngrm", "num_speculative_tokens": 2}}, "did you mean 'ngram'"),
        ({"speculative_config": {"method": "dspark", "num_speculative_tokens": 2}}, "speculative_config.model"),
        (
            {"speculative_config": {"method": "ngram", "num_speculative_tokens_per_batch_size": [[1, 4, 3]]}},
            "num_speculative_tokens was not provided",
        ),
        ({"speculative_config": {"method": "ngram", "num_spec_tokens": 2}}, "num_speculative_tokens"),
        ({"speculative_config": {**NGRAM, "prompt_lookup_min": 9}}, "prompt_lookup_min"),
        ({"speculative_config": {**NGRAM, "num_speculative_tokens": 0}}, "num_speculative_tokens"),
        ({"speculative_config": "ngram"}, "dictionary"),
    ],
)
def test_bad_arguments_say_what_to_write(toy_model: Path, arguments: dict, words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words) as caught:
        LLM(str(toy_model), **{"device": DEVICE, **arguments})
    assert "\n" not in str(caught.value)


def test_a_context_that_the_cache_cuts_is_told(toy_model: Path, caplog: pytest.LogCaptureFixture) -> None:
    llm = LLM(str(toy_model), device=DEVICE, block_size=16, num_gpu_blocks_override=5)
    assert llm.config.max_model_len == 64 and "max_model_len is 64, what the KV cache has room for" in caplog.text
    caplog.clear()
    LLM(str(toy_model), device=DEVICE, block_size=16, num_gpu_blocks_override=5, max_model_len=64)
    assert not caplog.text


def test_an_interrupt_leaves_nothing_behind(ngram: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    step, calls = ngram.engine.step, []

    def interrupted() -> list:
        calls.append(1)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return step()

    monkeypatch.setattr(ngram.engine, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ngram.generate(PROMPTS, SamplingParams(max_tokens=50, ignore_eos=True), use_tqdm=False)
    monkeypatch.undo()
    assert not ngram.engine.busy
    assert ngram.engine.scheduler.pool.num_free == ngram.engine.scheduler.pool.num_blocks


def test_chat_metrics_and_stream(ngram: LLM) -> None:
    messages = [{"role": "user", "content": "abcabcabc"}]
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    output = ngram.chat(messages, params, use_tqdm=False)[0]
    assert ngram.tokenizer.inner.decode(output.prompt_token_ids) == "<|user|>abcabcabc<eos><|assistant|>"
    streamed = [t for u in ngram.stream({"prompt_token_ids": output.prompt_token_ids}, params) for t in u.tokens]
    assert streamed == output.outputs[0].token_ids
    metrics = {m.name: m for m in ngram.get_metrics()}
    drafted = metrics["vllm:spec_decode_num_draft_tokens"].value
    accepted = metrics["vllm:spec_decode_num_accepted_tokens"].value
    per_position = metrics["vllm:spec_decode_num_accepted_tokens_per_pos"].values
    assert 0 < accepted <= drafted and sum(per_position) == accepted
    assert per_position == sorted(per_position, reverse=True)
    assert output.outputs[0].spec_decode_metrics


def test_seeds_at_the_edge_of_64_bits(plain: LLM) -> None:
    asked = [SamplingParams(seed=2**63 - 1, n=2, max_tokens=3), SamplingParams(seed=1, max_tokens=3)]
    assert [len(o.outputs) for o in plain.generate(["abc", "def"], asked, use_tqdm=False)] == [2, 1]
