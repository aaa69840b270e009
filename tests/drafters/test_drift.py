"""A drafter's own cache under real life: whatever was accepted, rejected, cut in chunks or found again in the prefix
cache, its rows are those of one fresh pass over the same text.

Which drafts are right is not left to chance: every token a drafter picks is scripted to be the target's own or another
one, so the pattern of acceptance is hypothesis's choice. Trees take the likeliest children and are left to themselves.
"""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stepping import whole_step
from torch import Tensor

from augury import LLM, SamplingParams
from augury.drafters.pick import PickedTokens
from augury.engine.request import Request
from augury.train.gates import Gates

pytestmark = pytest.mark.skipif(os.environ.get("AUGURY_TEST_DEVICE", "cpu") != "cpu", reason="reads caches on the CPU")

PROMPTS = ["abcabcabc", "the cat sat on the mat", "z"]
LENGTH = 30
BLOCK = 4
TREE = {"tree": {"max_nodes": 6, "top_k": 2}}
# Which rows of a text of n tokens a drafter has filled: a pair lies where its token does, a context ends before it.
FILLED = {"draft_model": (0, 0), "eagle": (1, 0), "eagle3": (1, 0), "mtp": (1, 0), "p-eagle": (1, 0)}
BLOCKS = ("dflash", "dflash2", "dspark")
FILLED |= dict.fromkeys(BLOCKS, (0, -1))
METHODS = {"p-eagle": "eagle3", "dflash2": "dflash"}  # of kinds that are no method by name

CHAINS = [(kind, "chain") for kind in FILLED]
TREES = [(kind, "tree") for kind in FILLED if kind != "p-eagle"]  # P-EAGLE drafts chains


class Script:
    """Right and wrong guesses by the book: the target's own token where `right` says so, another one elsewhere."""

    def __init__(self, texts: list[list[int]], right: list[bool]) -> None:
        self.texts, self.right, self.used = texts, right, 0
        self.requests: list[Request] = []

    def pick(self, logits: Tensor, slots: Tensor, positions: Tensor, sampling: Any, node: int) -> PickedTokens:
        seats = {request.slot: text for request, text in zip(self.requests, self.texts, strict=True)}
        tokens = []
        for slot, position in zip(slots.tolist(), positions.tolist(), strict=True):
            text = seats.get(slot)
            token = text[position] if text and position < len(text) else 0
            self.used += 1
            tokens.append(token if self.right[self.used % len(self.right)] else (token + 1) % 256)
        return PickedTokens(torch.tensor(tokens))


class Drafting:
    """One kind of drafter, twice: as it is used, and reading whole texts at once."""

    def __init__(self, kind: str, toy_model: Path, gates: Gates, tree: bool) -> None:
        self.kind = kind
        gate = gates.find(kind) or gates.train(kind, steps=30)
        spec: dict[str, Any] = {"method": METHODS.get(kind, kind), "num_speculative_tokens": 3}
        spec |= {"parallel_drafting": True} if kind == "p-eagle" else {}
        spec |= TREE if tree else {}
        model = gate.directory if kind == "mtp" else toy_model
        if kind != "mtp":
            spec["model"] = str(gate.directory)
        shared: dict[str, Any] = {"max_model_len": 128, "block_size": BLOCK, "speculative_config": spec}
        self.llm = LLM(str(model), long_prefill_token_threshold=7, max_num_seqs=3, **shared)
        self.whole = LLM(str(model), enable_prefix_caching=False, max_num_seqs=1, **shared)

    @cached_property
    def texts(self) -> list[list[int]]:
        """The target's greedy answers, prompts included."""
        outputs = self.llm.generate(PROMPTS, params(), use_tqdm=False)
        return [[*o.prompt_token_ids, *o.outputs[0].token_ids] for o in outputs]


def params() -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=LENGTH, ignore_eos=True)


def rows_of(llm: LLM, request: Request, kind: str) -> list[Tensor]:
    """Keys and values of every layer, for the rows a drafter must have filled."""
    drafter: Any = llm.engine.drafter
    first, last = FILLED[kind]
    at = [request.blocks[i // BLOCK] * BLOCK + i % BLOCK for i in range(first, request.length + last)]
    cache = (drafter.model if kind == "draft_model" else drafter.head).cache
    return [store[at].clone() for store in (*cache.keys, *cache.values)]


def read_at_once(llm: LLM, tokens: list[int], kind: str) -> list[Tensor]:
    """The same rows after one pass over all but the newest token, which the pass draws again."""
    request = llm.intake.requests("whole", tokens[:-1], params())[0]
    llm.engine.add(request)
    whole_step(llm.engine)
    assert request.tokens == tokens
    found = rows_of(llm, request, kind)
    llm.engine.abort(request)
    return found


@pytest.fixture(scope="module")
def gates(toy_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Gates:
    return Gates(toy_model, [[64, 65, 66, 67]], 24, tmp_path_factory.mktemp("gates"))


@pytest.fixture(scope="module")
def drafting(request: Any, toy_model: Path, gates: Gates) -> Drafting:
    return Drafting(request.param[0], toy_model, gates, request.param[1] == "tree")


@pytest.mark.parametrize("drafting", [*CHAINS, *TREES], indirect=True, ids=" ".join)
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(right=st.lists(st.booleans(), min_size=1, max_size=40), steps=st.integers(2, 14))
def test_rows_are_those_of_one_pass(drafting: Drafting, right: list[bool], steps: int) -> None:
    llm, script = drafting.llm, Script(drafting.texts, right)
    drafter: Any = llm.engine.drafter
    writer = drafter.chain
    as_it_was, writer._pick = writer._pick, script.pick
    try:
        tokenizer = llm.get_tokenizer()
        requests = [llm.intake.requests(p, tokenizer.encode(p), params())[0] for p in PROMPTS]
        script.requests = requests
        for request in requests:
            llm.engine.add(request)
        for _ in range(steps):
            whole_step(llm.engine)
        for request, text in zip(requests, script.texts, strict=True):
            assert request.tokens == text[: request.length]
            if request.pending != 1 or request.finish_reason:
                continue  # still reading its prompt, or gone
            want = read_at_once(drafting.whole, request.tokens, drafting.kind)
            for have, expected in zip(rows_of(llm, request, drafting.kind), want, strict=True):
                torch.testing.assert_close(have, expected, atol=2e-4, rtol=1e-3)
    finally:
        writer._pick = as_it_was
        for request in requests:
            llm.engine.abort(request)


@pytest.mark.parametrize("drafting", CHAINS, indirect=True, ids=" ".join)
def test_the_script_is_followed(drafting: Drafting) -> None:
    """All right: every draft is accepted whole; all wrong: none is. Otherwise the test above would test nothing."""
    drafter: Any = drafting.llm.engine.drafter
    writer, texts = drafter.chain, drafting.texts
    as_it_was = writer._pick
    for right in (True, False):
        script = Script(texts[:1], [right])
        tokens = drafting.llm.get_tokenizer().encode(PROMPTS[0])
        request = drafting.llm.intake.requests("one", tokens, params())[0]
        script.requests, writer._pick = [request], script.pick
        drafting.llm.engine.add(request)
        while request.finish_reason is None:
            whole_step(drafting.llm.engine)
        writer._pick = as_it_was
        assert request.spec.num_accepted_tokens == (request.spec.num_draft_tokens if right else 0)
        assert request.spec.num_draft_tokens > 0
