"""Drafters together: the text is plain decoding's whoever leads, and whoever promises most leads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from generating import DEVICE, PROMPTS, held_to_plain, ids

from augury import LLM, SamplingParams
from augury.drafters.confidence import Prices
from augury.drafters.routing import DrafterScores, Guess, RoutingCosts
from augury.engine.budget import FixedBudget
from augury.observe.stats import shared_out
from augury.train.gates import Gates

NGRAM = {"method": "ngram", "num_speculative_tokens": 8, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
SUFFIX = {"method": "suffix", "num_speculative_tokens": 6}
MODELS = ("eagle3", "draft_model", "medusa")


@pytest.fixture(scope="module")
def plain(toy_model: Path) -> LLM:
    return LLM(str(toy_model), device=DEVICE, max_model_len=256)


@pytest.fixture(scope="module")
def heads(toy_model: Path, plain: LLM, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    prompts = [plain.get_tokenizer().encode(prompt) for prompt in PROMPTS]
    gates = Gates(toy_model, prompts, 40, tmp_path_factory.mktemp("gates"))
    trained = {kind: gates.train(kind, steps=40).directory for kind in ("eagle3", "medusa")}
    return {**trained, "draft_model": toy_model}


def together(toy_model: Path, *parts: dict[str, Any], **others: Any) -> LLM:
    settings = {"max_model_len": 256, **others}
    return LLM(str(toy_model), device=DEVICE, speculative_config=list(parts), **settings)


def model(heads: dict[str, Path], kind: str) -> dict[str, Any]:
    return {"method": kind, "model": str(heads[kind]), "num_speculative_tokens": 3}


def test_look_ups_together_are_held_to_plain(toy_model: Path, plain: LLM) -> None:
    llm = together(toy_model, NGRAM, SUFFIX)
    held_to_plain(llm, plain, PROMPTS)
    stats = llm.engine.stats
    assert set(stats.by_drafter) == {"ngram", "suffix"}
    assert sum(drafted for drafted, _ in stats.by_drafter.values()) == stats.spec.num_draft_tokens
    assert sum(accepted for _, accepted in stats.by_drafter.values()) == stats.spec.num_accepted_tokens > 0


@pytest.mark.parametrize("kind", MODELS)
def test_a_model_and_a_look_up_are_held_to_plain(
    toy_model: Path, plain: LLM, heads: dict[str, Path], kind: str
) -> None:
    llm = together(toy_model, NGRAM, model(heads, kind))
    held_to_plain(llm, plain, PROMPTS)
    assert set(llm.engine.stats.by_drafter) == {"ngram", kind}  # both have drafted


@pytest.mark.parametrize(
    "settings",
    [
        {"max_num_seqs": 2, "block_size": 4},
        {"max_num_batched_tokens": 8, "max_num_seqs": 8},
        {"num_gpu_blocks_override": 14, "block_size": 8, "max_model_len": 88},  # preempts
    ],
    ids=lambda s: ",".join(f"{k}={v}" for k, v in s.items()),
)
def test_however_it_is_served(toy_model: Path, plain: LLM, heads: dict[str, Path], settings: dict[str, Any]) -> None:
    llm = together(toy_model, NGRAM, SUFFIX, model(heads, "eagle3"), **settings)
    params = [SamplingParams(temperature=0.8, seed=i, max_tokens=40, ignore_eos=True) for i in range(8)]
    assert ids(llm, PROMPTS, params) == ids(plain, PROMPTS, params)
    if "num_gpu_blocks_override" in settings:
        assert llm.engine.stats.preemptions > 0


def test_the_models_cache_stays_whole_where_another_leads(toy_model: Path, plain: LLM, heads: dict[str, Path]) -> None:
    """The target as its own drafter is always right, unless it has missed something of the text."""
    llm = together(toy_model, NGRAM, {**model(heads, "draft_model"), "num_speculative_tokens": 1})
    params = [SamplingParams(temperature=0.0, max_tokens=150, ignore_eos=True) for _ in PROMPTS]
    assert ids(llm, PROMPTS, params) == ids(plain, PROMPTS, params)
    drafted, accepted = llm.engine.stats.by_drafter["draft_model"]
    assert drafted > 0
    assert accepted >= 0.95 * drafted
    assert llm.engine.stats.by_drafter["ngram"][1] > 0


def drafts_left(llm: LLM) -> list[Any]:
    """Every draft that is left in a slot from now on."""
    seen: list[Any] = []
    leave = llm.engine.runner._leave_pending

    def noted(draft: Any, slots: Any) -> None:
        counts = draft.count.tolist()
        seen.append((slots.tolist(), [line[:n] for line, n in zip(draft.tokens.tolist(), counts, strict=True)]))
        leave(draft, slots)

    llm.engine.runner._leave_pending = noted  # type: ignore[method-assign]
    return seen


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("settings", [{}, {"num_gpu_blocks_override": 14, "block_size": 8, "max_model_len": 88}])
def test_a_model_that_reads_late_drafts_the_same(
    toy_model: Path, plain: LLM, heads: dict[str, Path], kind: str, settings: dict[str, Any]
) -> None:
    """While look-ups lead for everyone the model skips its pass; what it drafts later is as if it had not."""
    drafter, seats = model(heads, kind), 2
    if kind == "draft_model":  # it is always right, and a look-up seldom leads
        drafter, seats = drafter | {"num_speculative_tokens": 1}, 1
    late, at_once = (together(toy_model, NGRAM, drafter, max_num_seqs=seats, **settings) for _ in range(2))
    late.engine.runner.let_rest()
    late.engine.drafter.adapt(None, late.engine.runner.backlog, False)  # type: ignore[union-attr, arg-type]
    aside, put = 0, late.engine.runner.backlog.put_aside  # type: ignore[union-attr]

    def counted(inputs: Any) -> None:
        nonlocal aside
        aside += 1
        put(inputs)

    late.engine.runner.backlog.put_aside = counted  # type: ignore[method-assign, union-attr]
    left, wanted = drafts_left(late), drafts_left(at_once)
    params = [SamplingParams(temperature=0.6 * (i % 2), seed=i, max_tokens=40, ignore_eos=True) for i in range(6)]
    prompts = [PROMPTS[i % len(PROMPTS)] for i in range(6)]
    for _ in range(2):  # the second time from the prefix cache
        assert ids(late, prompts, params) == ids(at_once, prompts, params) == ids(plain, prompts, params)
    assert left == wanted
    assert (aside > 0) == (kind != "medusa")  # that keeps nothing of what it reads


@pytest.mark.parametrize("kind", ["eagle3", "draft_model"])
def test_its_model_ends_drafts_that_cease_to_pay(
    toy_model: Path, plain: LLM, heads: dict[str, Path], kind: str
) -> None:
    spec = {"method": "hybrid", "drafters": [NGRAM, model(heads, kind)], "adaptive": True}
    llm = LLM(str(toy_model), device=DEVICE, speculative_config=spec, max_model_len=256)
    llm.engine.budget = FixedBudget(8)  # otherwise the machine's speed would decide who may draft
    drafter: Any = llm.engine.drafter
    confidence = drafter._confidence
    assert confidence is not None and drafter.chain is None  # it is the model's; the engine's budget has none
    held_to_plain(llm, plain, PROMPTS)
    assert confidence._records.sum() > 0 and confidence.prices > (0, 0) and not confidence.take_empty()
    drafter._model_prices = lambda *given: Prices(2.0, 2.0)  # no token is worth so much
    drafted = llm.engine.stats.by_drafter[kind]
    held_to_plain(llm, plain, PROMPTS)
    assert llm.engine.stats.by_drafter[kind] == drafted
    drafter.draft_whole()
    held_to_plain(llm, plain, PROMPTS)
    assert drafter._confidence is None and llm.engine.stats.by_drafter[kind] > drafted


def test_a_token_that_a_model_was_too_unsure_to_draft_counts_as_wrong() -> None:
    sure, unsure = DrafterScores(is_model=True), DrafterScores(is_model=True)
    for scores in (sure, unsure):
        assert scores.judge(0, Guess([1, 2], ended=scores is unsure), [1, 2, 3]) == 2
        assert scores.judge(0, Guess([5, 2], ended=scores is unsure), [1, 2, 3]) == 0
    assert sure.rates(0, 0, 3)[:2] == unsure.rates(0, 0, 3)[:2]
    assert sure.rates(0, 0, 3)[2] > unsure.rates(0, 0, 3)[2]
    unsure.judge(1, Guess([], ended=True), [1, 2, 3])
    assert unsure.rates(1, 0, 1)[0] < sure.rates(1, 0, 1)[0]


def test_routing_follows_what_passes_cost() -> None:
    scores = DrafterScores(is_model=False)
    for _ in range(10):
        scores.judge(0, Guess([1, 2, 3, 4], scores.run(0)), [1, 2, 3, 4, 5])
    run = scores.run(0)
    cheap, dear = (RoutingCosts([1 + row * n for n in range(9)]) for row in (0.01, 2.0))
    assert scores.promise(0, run, 8, cheap)[1] == 8
    assert scores.promise(0, run, 8, dear)[1] < 8
    jump = RoutingCosts([1.0, 1.1, 1.2, 4.0, 4.0, 4.0, 4.0, 4.0, 4.0])  # three tokens more cost three passes
    assert scores.promise(0, run, 4, jump)[1] == 2


def test_a_prediction_beside_a_draft_model(toy_model: Path, plain: LLM, heads: dict[str, Path]) -> None:
    spec = model(heads, "draft_model")
    llm = LLM(str(toy_model), device=DEVICE, max_model_len=256, speculative_config=spec)
    bare = [SamplingParams(temperature=0.0, max_tokens=100, ignore_eos=True) for _ in PROMPTS]
    want = ids(plain, PROMPTS, bare)
    # It agrees for a while, differs, and agrees again: each changes whose guesses are tried.
    edited = [[*answer[:30], 3, *answer[40:60], 5, *answer[70:]] for answer in want]
    params = [p.clone(extra_args={"prediction": e}) for p, e in zip(bare, edited, strict=True)]
    assert ids(llm, PROMPTS, params) == want
    spec_stats, (drafted, accepted) = llm.engine.stats.spec, llm.engine.stats.by_drafter["prediction"]
    others = spec_stats.num_draft_tokens - drafted, spec_stats.num_accepted_tokens - accepted
    assert others[0] > 0 and others[1] >= 0.95 * others[0]


def test_a_requests_figures_name_the_parts(toy_model: Path) -> None:
    llm = together(toy_model, NGRAM, SUFFIX)
    (output,) = llm.generate("abcabcabc", SamplingParams(temperature=0, max_tokens=60, ignore_eos=True), use_tqdm=False)
    figures = output.outputs[0].spec_decode_metrics
    assert figures is not None
    parts = figures["by_drafter"]
    assert sum(part["num_draft_tokens"] for part in parts.values()) == figures["num_draft_tokens"] > 0
    names = {metric.labels.get("drafter") for metric in llm.get_metrics() if metric.name.endswith("_by_drafter")}
    assert names == set(parts)


def test_a_run_that_holds_is_believed_and_one_that_breaks_is_not() -> None:
    scores = DrafterScores(is_model=False)
    weak, length = scores.promise(0, 0, 8)
    for _ in range(10):
        scores.judge(0, Guess([1, 2, 3, 4], scores.run(0)), [1, 2, 3, 4, 5])
    strong, longer = scores.promise(0, scores.run(0), 8)
    assert scores.run(0) == 50 and strong > 3 > weak and longer == 8 > length
    scores.judge(0, Guess([1, 2], scores.run(0)), [1, 9])
    assert scores.run(0) == 0
    for _ in range(200):
        scores.judge(0, Guess([1, 2, 3, 4]), [9])
    assert scores.promise(0, 0, 8) == (1.0, 0)  # it had better not guess
    others = DrafterScores(is_model=False)
    assert scores.promise(7, 0, 8)[0] <= others.promise(7, 0, 8)[0]  # a new request begins with what others showed


def test_what_lies_beyond_the_text_is_not_held_against_a_guess() -> None:
    scores = DrafterScores(is_model=True)
    for _ in range(20):
        scores.judge(0, Guess([1, 2, 3]), [1])
    first, second, third = scores.rates(0, 0, 3)
    assert first > 0.9 and second == third == pytest.approx(0.6)
    scores.forget(0)
    assert scores.rates(0, 0, 1)[0] == pytest.approx(scores.rates(5, 0, 1)[0])


@pytest.mark.parametrize(
    ("nodes", "accepted", "want"),
    [
        (7, 5, [("a", 3, 3), ("b", 4, 2)]),
        (7, 2, [("a", 3, 2), ("b", 4, 0)]),
        (4, 4, [("a", 3, 3), ("b", 1, 1)]),
        (3, 0, [("a", 3, 0)]),
    ],
)
def test_a_chain_is_shared_out(nodes: int, accepted: int, want: list[tuple[str, int, int]]) -> None:
    assert shared_out((("a", 3), ("b", 4)), nodes, accepted) == want
