"""Passes launched before the one before them has landed: the same tokens, whoever joins, leaves, ends or is aborted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from eagle_cases import eagle3_module, write_eagle3
from generating import DEVICE, PROMPTS
from hypothesis import given, settings
from hypothesis import strategies as st
from shallow import shallow_copy

from augury import LLM, SamplingParams
from augury.engine import engine as engine_module
from augury.engine.grammar import Grammars
from augury.engine.grammar_limits import GrammarLimits
from augury.engine.request import Request
from augury.engine.scheduled import CONTINUES

pytestmark = pytest.mark.usefixtures("one_thread_throughout")
TREE = {"tree": {"max_nodes": 12, "top_k": 3}}
SPECS: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "draft model": {"method": "draft_model", "num_speculative_tokens": 3},
    "draft tree": {"method": "draft_model", "num_speculative_tokens": 3, **TREE},
    "eagle3": {"method": "eagle3", "num_speculative_tokens": 4},
    "standard": {"method": "draft_model", "num_speculative_tokens": 3, "rejection_sample_method": "standard"},
}
SMALL = {"num_gpu_blocks_override": 24, "block_size": 8, "max_model_len": 120, "max_num_batched_tokens": 32}


@pytest.fixture(scope="module")
def heads(toy_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("heads")
    layers = {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}
    return {
        "draft_model": str(shallow_copy(toy_model, [0], root / "model")),
        "eagle3": str(write_eagle3(root / "eagle3", eagle3_module(), **layers)),
    }


def make(toy_model: Path, heads: dict[str, str], name: str, depth: int, **options: Any) -> LLM:
    spec = SPECS[name]
    if spec is not None:
        spec = {**spec, "model": heads[spec["method"]]}
    given = {"max_model_len": 256, "max_num_seqs": 8, **options}
    llm = LLM(str(toy_model), device=DEVICE, speculative_config=spec, **given)
    llm.engine.depth, llm.engine.state.tracks = depth, True
    if depth and llm.engine.state.masks is None and llm.engine.runner.judge.keeps_masks:
        llm.engine.state.make_masks()
    return llm


@pytest.fixture(scope="module")
def pairs(toy_model: Path, heads: dict[str, str]) -> Any:
    """One pair of engines a method and set of options, one that waits for each pass and one that does not."""
    made: dict[Any, tuple[LLM, LLM]] = {}

    def pair(name: str, **options: Any) -> tuple[LLM, LLM]:
        key = (name, *sorted(options.items()))
        if key not in made:
            made[key] = (make(toy_model, heads, name, 0, **options), make(toy_model, heads, name, 1, **options))
        return made[key]

    return pair


class Asked:
    """Requests put to an engine one at a time, between its steps."""

    def __init__(self, llm: LLM) -> None:
        self.llm, self.requests, self.continued = llm, list[Request](), 0
        plan = llm.engine.scheduler.plan
        self._undo = lambda: setattr(llm.engine.scheduler, "plan", plan)

        def counted() -> Any:
            scheduled = plan()
            self.continued += sum(item.start == CONTINUES for item in scheduled)
            return scheduled

        llm.engine.scheduler.plan = counted  # type: ignore[method-assign]

    def add(self, prompt: str, params: SamplingParams) -> None:
        for request in self.llm._requests("x", self.llm.tokenizer.encode(prompt), params):
            self.requests.append(request)
            self.llm.engine.add(request)

    def finish(self) -> list[tuple[Any, ...]]:
        engine = self.llm.engine
        while engine.busy:
            engine.step()
        self._undo()
        assert not engine.flights and engine.scheduler.pool.num_free == engine.scheduler.pool.num_blocks
        assert all(request.in_flight == 0 for request in self.requests)
        return [(r.output, r.finish_reason, r.stop_reason, r.text and r.text.text) for r in self.requests]


CASES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0, "max_tokens": 40, "ignore_eos": True},
    "sampled": {"temperature": 0.8, "top_p": 0.9, "max_tokens": 40, "ignore_eos": True},
    "penalties": {"temperature": 0.8, "repetition_penalty": 1.3, "frequency_penalty": 0.5, "max_tokens": 40},
    "end tokens": {"temperature": 0.8, "max_tokens": 60, "stop_token_ids": [60, 61, 62, 63]},
    "more end tokens than fit": {"temperature": 0.8, "max_tokens": 60, "stop_token_ids": list(range(40, 60))},
    "min tokens": {"temperature": 0.8, "max_tokens": 60, "min_tokens": 9, "stop_token_ids": list(range(40, 100))},
    "stop strings": {"temperature": 0.8, "max_tokens": 60, "stop": ["a", "7", "}"]},
    "a grammar": {"temperature": 0.8, "max_tokens": 60, "structured_outputs": {"regex": "([ab1]{1,3}[c-f]){2,20}"}},
    "one token": {"temperature": 0, "max_tokens": 1},
    "two tokens": {"temperature": 0, "max_tokens": 2},
}


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("case", CASES)
def test_the_same_tokens_at_either_depth(pairs: Any, name: str, case: str) -> None:
    answers = []
    for llm in pairs(name):
        asked = Asked(llm)
        for i, prompt in enumerate(PROMPTS):
            asked.add(prompt, SamplingParams(seed=i, **CASES[case]))
        answers.append(asked.finish())
        if CASES[case]["max_tokens"] > 2:
            assert (asked.continued > 20) == bool(llm.engine.depth)
    assert answers[0] == answers[1]


@pytest.mark.parametrize("name", SPECS)
def test_preempted_requests_say_the_same(pairs: Any, name: str) -> None:
    answers = []
    for llm in pairs(name, **SMALL):
        before, asked = llm.engine.stats.preemptions, Asked(llm)
        for i, prompt in enumerate(PROMPTS):
            asked.add(prompt, SamplingParams(temperature=0.8, seed=i, max_tokens=60, ignore_eos=True))
        answers.append(asked.finish())
        assert llm.engine.stats.preemptions > before
    if name != "standard":  # its draws depend on the drafts, and these on how many blocks were free
        assert answers[0] == answers[1]


@pytest.mark.parametrize("name", ["draft model", "draft tree"])
def test_a_grammar_that_looks_at_no_draft_in_time(toy_model: Path, heads: dict[str, str], name: str) -> None:
    """Nobody knows what may follow a node that was not looked at: its pass is dropped, and later ones wait."""
    answers = []
    for depth in (0, 1):
        llm = make(toy_model, heads, name, depth)
        llm.intake._grammars = Grammars(llm.tokenizer, llm.engine.target.vocab_size, GrammarLimits(draft_seconds=0.0))
        asked = Asked(llm)
        for i, prompt in enumerate(PROMPTS[:4]):
            asked.add(prompt, SamplingParams(seed=i, max_tokens=24, structured_outputs={"regex": "(?s:.{4,20}c)"}))
        answers.append(asked.finish())
        dropped = [request.preemptions for request in asked.requests]
        assert max(dropped) == depth and [request.waits for request in asked.requests] == [bool(n) for n in dropped]
    assert answers[0] == answers[1]


@pytest.mark.parametrize("part", ["read_ahead", "complete"])
def test_grammars_that_fail_while_a_pass_has_begun(pairs: Any, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever fails between the halves of a pass, it is run again, and texts are what they would have been."""
    answers = []
    for llm in pairs("eagle3"):
        owner, calls = (engine_module, 0) if part == "read_ahead" else (llm.engine.runner, 0)
        real = getattr(owner, part)

        def failing(*given: Any, real: Any = real, engine: Any = llm.engine) -> Any:
            nonlocal calls
            begun = bool(engine.flights) and engine.flights[-1].rest is not None
            calls += begun
            if begun and calls in (3, 8):
                calls += 1
                raise RuntimeError("once")
            return real(*given)

        asked = Asked(llm)
        for i, prompt in enumerate(PROMPTS):
            asked.add(prompt, SamplingParams(seed=i, **CASES["a grammar"]))
        with monkeypatch.context() as patched:
            patched.setattr(owner, part, failing)
            answers.append(asked.finish())
        assert (calls > 8) == bool(llm.engine.depth)
    assert answers[0] == answers[1]


events = st.lists(
    st.tuples(st.sampled_from(["add", "add", "step", "step", "step", "abort"]), st.integers(0, 10**6)), max_size=40
)


@pytest.mark.parametrize("name", ["plain", "eagle3", "draft tree"])
@settings(max_examples=12, deadline=None, derandomize=True)
@given(script=events)
def test_whoever_joins_leaves_or_needs_the_host(pairs: Any, name: str, script: list[tuple[str, int]]) -> None:
    """Each request that is not aborted ends as it does alone; some need the host at every pass."""
    slow, fast = pairs(name, **SMALL)
    asked, wanted, gone = Asked(fast), list[tuple[str, SamplingParams]](), set[int]()
    for event, dice in script:
        if event == "step":
            fast.engine.step()
        elif event == "abort" and asked.requests:
            gone.add(dice % len(asked.requests))
            fast.engine.abort(asked.requests[dice % len(asked.requests)])
        elif event == "add":
            wanted.append((PROMPTS[dice % 8] * (1 + dice // 8 % 3), _params(dice // 24)))
            asked.add(*wanted[-1])
    answers = asked.finish()
    for number, (prompt, params) in enumerate(wanted):
        if number not in gone:
            alone = Asked(slow)
            alone.add(prompt, params)
            assert [answers[number]] == alone.finish()


def _params(dice: int) -> SamplingParams:
    kinds: list[dict[str, Any]] = [
        {},
        {"stop": ["a"]},
        {"logprobs": 2},
        {"prompt_logprobs": 1},
        {"structured_outputs": {"regex": "[ab]{2,9}"}},
        {"stop_token_ids": [70, 71, 72]},
    ]
    kind = kinds[dice % len(kinds)]
    return SamplingParams(temperature=0.7 * (dice // 7 % 2), seed=dice, max_tokens=1 + dice // 11 % 24, **kind)


def test_a_pass_that_cannot_be_launched_loses_nothing(pairs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    slow, fast = pairs("eagle3")
    params = [SamplingParams(temperature=0.8, seed=i, max_tokens=30, ignore_eos=True) for i in range(8)]
    want = Asked(slow)
    for prompt, param in zip(PROMPTS, params, strict=True):
        want.add(prompt, param)
    expected = want.finish()
    run, failures = fast.engine.runner.run, list[int]()

    def fails(step_input: Any) -> Any:
        output = run(step_input)  # what it has written by then must do no harm
        if step_input.requests == len(PROMPTS) and len(failures) < 3 and fast.engine.flights:
            failures.append(step_input.requests)
            raise RuntimeError("on purpose")
        return output

    monkeypatch.setattr(fast.engine.runner, "run", fails)
    asked = Asked(fast)
    for prompt, param in zip(PROMPTS, params, strict=True):
        asked.add(prompt, param)
    assert asked.finish() == expected and len(failures) == 3
