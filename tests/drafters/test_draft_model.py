"""A draft model beside its target: its cache, its context, its draws, and the laws of every rule through it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from generating import DEVICE, PROMPTS, held_to_plain, ids, plainly
from shallow import shallow_copy
from stepping import whole_step

from augury import LLM, SamplingParams


@pytest.fixture(scope="module")
def weak(toy_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy without its second layer: right now and then."""
    return shallow_copy(toy_model, [0], tmp_path_factory.mktemp("weak"))


@pytest.fixture(scope="module")
def plain(toy_model: Path) -> LLM:
    return LLM(str(toy_model), device=DEVICE, max_model_len=256)


def drafted(toy_model: Path, drafter: Path, settings: dict[str, Any] | None = None, **spec: Any) -> LLM:
    wanted = {"method": "draft_model", "model": str(drafter), "num_speculative_tokens": 4, **spec}
    return LLM(str(toy_model), device=DEVICE, **{"max_model_len": 256, **(settings or {})}, speculative_config=wanted)


@pytest.mark.parametrize("sampled", ["greedy", "probabilistic"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"max_num_seqs": 2},
        {"long_prefill_token_threshold": 5},
        {"num_gpu_blocks_override": 24, "max_num_seqs": 8},
        {"enable_prefix_caching": False},
        {"block_size": 4},
    ],
    ids=lambda s: ",".join(f"{k}={v}" for k, v in s.items()) or "as it comes",
)
def test_text_is_that_of_plain_decoding(toy_model: Path, weak: Path, plain: LLM, settings: dict, sampled: str) -> None:
    llm = drafted(toy_model, weak, settings, draft_sample_method=sampled)
    held_to_plain(llm, plain, PROMPTS, length=40)
    assert llm.engine.stats.spec.num_accepted_tokens > 0
    if "num_gpu_blocks_override" in settings:
        assert llm.engine.stats.preemptions > 0


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_model_that_drafts_for_itself_is_always_right(toy_model: Path, temperature: float) -> None:
    """Greedy or with the target's own noise: the coupling of equal laws is perfect."""
    llm = drafted(toy_model, toy_model, draft_sample_method="probabilistic")
    params = [SamplingParams(temperature=temperature, seed=i, max_tokens=33, ignore_eos=True) for i in range(8)]
    ids(llm, PROMPTS, params)
    spec = llm.engine.stats.spec
    assert spec.num_accepted_tokens == spec.num_draft_tokens > 0


@pytest.mark.parametrize("rule", ["standard", "block"])
def test_rejection_rules_are_greedy_where_the_request_is(toy_model: Path, weak: Path, plain: LLM, rule: str) -> None:
    llm = drafted(toy_model, weak, draft_sample_method="probabilistic", rejection_sample_method=rule)
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    assert ids(llm, PROMPTS, params) == plainly(plain, PROMPTS, params)
    assert llm.engine.stats.spec.num_accepted_tokens > 0


@pytest.mark.parametrize("rule", ["standard", "block", "typical", "entropy"])
def test_rejection_rules_do_not_depend_on_the_batch(toy_model: Path, weak: Path, rule: str) -> None:
    options = {"draft_sample_method": "probabilistic", "rejection_sample_method": rule}
    params = [SamplingParams(temperature=0.8, seed=i, max_tokens=24, ignore_eos=True) for i in range(8)]
    together = ids(drafted(toy_model, weak, **options), PROMPTS, params)
    alone = drafted(toy_model, weak, {"max_num_seqs": 1, "long_prefill_token_threshold": 3}, **options)
    assert ids(alone, PROMPTS, params) == together


def test_a_drafter_with_less_context_steps_aside(toy_model: Path, weak: Path, plain: LLM) -> None:
    llm = drafted(toy_model, weak, max_model_len=24)
    params = SamplingParams(temperature=0.7, seed=5, max_tokens=50, ignore_eos=True)
    assert ids(llm, PROMPTS, params) == plainly(plain, PROMPTS, params)
    free = drafted(toy_model, weak)
    ids(free, PROMPTS, params)
    assert 0 < llm.engine.stats.spec.num_drafts < free.engine.stats.spec.num_drafts / 2


def test_vocabularies_must_agree(toy_model: Path, tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    LlamaForCausalLM(
        LlamaConfig(vocab_size=90, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
    ).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="same vocabulary size as the target: 90 against 260"):
        drafted(toy_model, tmp_path)


# --- PARD, and other vocabularies ----------------------------------------------------------------------------------


def test_parallel_drafts_come_from_masks_in_one_pass(toy_model: Path, tmp_path: Path, plain: LLM) -> None:
    """The i-th drafted token is what the drafter says behind the text and i masks."""
    import json
    import shutil

    from transformers import AutoModelForCausalLM

    shutil.copytree(toy_model, tmp_path / "pard")
    config = json.loads((tmp_path / "pard/config.json").read_text())
    (tmp_path / "pard/config.json").write_text(json.dumps({**config, "pard_token": 259}))
    llm = drafted(toy_model, tmp_path / "pard", parallel_drafting=True)
    prompt = llm.get_tokenizer().encode("the cat sat")
    request = llm._requests("x", prompt, SamplingParams(temperature=0, max_tokens=20, ignore_eos=True))[0]
    llm.engine.add(request)
    for _ in range(3):
        whole_step(llm.engine)
        model = AutoModelForCausalLM.from_pretrained(toy_model)
        with torch.no_grad():
            want = model(torch.tensor([[*request.tokens, 259, 259, 259]])).logits[0, -4:].argmax(-1).tolist()
        draft = llm.engine.state.draft  # it has room for a prediction, too
        assert draft.tokens[request.slot, : int(draft.count[request.slot])].tolist() == want
    llm.engine.abort(request)
    params = [SamplingParams(temperature=t, seed=1, max_tokens=25, ignore_eos=True) for t in (0, 0.8)] * 4
    assert ids(llm, PROMPTS, params) == plainly(plain, PROMPTS, params)
    with pytest.raises(ValueError, match="trained for it"):
        drafted(toy_model, toy_model, parallel_drafting=True)


def test_a_drafter_with_another_vocabulary(toy_model: Path, tmp_path: Path, plain: LLM) -> None:
    """The target's twin with its tokens renumbered: through their texts it drafts as the target itself would."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    order = torch.randperm(256, generator=torch.Generator().manual_seed(2)).tolist()
    inner = Tokenizer(models.BPE(vocab={alphabet[old]: new for new, old in enumerate(order)}, merges=[]))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    model = AutoModelForCausalLM.from_pretrained(toy_model)
    weights = model.get_input_embeddings().weight.data
    model.get_input_embeddings().weight.data = weights[[*order, 256, 257]].clone()  # two tokens less than the target
    model.config.vocab_size = 258
    model.save_pretrained(tmp_path)
    PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<eos>").save_pretrained(tmp_path)
    llm = drafted(toy_model, tmp_path, use_heterogeneous_vocab=True)
    assert llm.engine.drafter.shared.shared >= 256  # type: ignore[union-attr]
    params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    assert ids(llm, PROMPTS, params) == plainly(plain, PROMPTS, params)
    assert llm.engine.stats.spec.acceptance_rate > 0.6  # it has no word for four of the tokens
