"""A request that makes a step fail ends alone: its neighbours' text is that of a run without any failure."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from served import Served, served
from shallow import shallow_copy

from augury import LLM, SamplingParams
from augury.config.structured import StructuredOutputsParams
from augury.drafters.look_up import LookUpDrafter
from augury.engine import advance
from augury.engine.blame import isolate
from augury.engine.commit import Update
from augury.engine.engine import Engine
from augury.engine.grammar import Grammar
from augury.engine.request import Request
from augury.engine.rows import Segments
from augury.engine.scheduled import ScheduledRequest
from augury.engine.state import SlotState

NEIGHBOURS = 20
GUILTY = "!guilty! guilty! guilty! guilty! guilty!"
PREFIX = "the same beginning for all of them, long enough for several blocks: "
NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1, "prompt_lookup_max": 3}
SUFFIX = {"method": "suffix", "num_speculative_tokens": 8, "tree": {"max_nodes": 12}}
Answer = tuple[list[int], str, Any, Any, Any]


def prompts() -> list[str]:
    """Twenty innocents of many lengths, some with a prefix in common, and the guilty one among them."""
    words = [f"{PREFIX if i % 3 else ''}abcab {i} cabca {'xyz' * (i % 5)}" for i in range(NEIGHBOURS)]
    return [*words[:7], GUILTY, *words[7:]]


def params() -> list[SamplingParams]:
    """Greedy, sampled, with penalties, with log-probabilities, with a grammar: each in turn."""
    kinds: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 0.9, "top_p": 0.9},
        {"temperature": 0.7, "presence_penalty": 0.8, "frequency_penalty": 0.5, "repetition_penalty": 1.2},
        {"temperature": 0.8, "logprobs": 2, "logit_bias": {"70": 2.0}},
        {"temperature": 0.6, "structured_outputs": StructuredOutputsParams(regex="[a-f ]{30,60}"), "ignore_eos": False},
    ]
    return [
        SamplingParams(**{"seed": i, "max_tokens": 24 + i % 7, "ignore_eos": True, **kinds[i % len(kinds)]})
        for i in range(NEIGHBOURS + 1)
    ]


def answers(llm: LLM, asked: list[SamplingParams] | None = None) -> list[Answer]:
    """Everything that is said to each of them."""
    found = [output.outputs[0] for output in llm.generate(prompts(), asked or params(), use_tqdm=False)]
    engine = llm.engine
    assert engine.scheduler.pool.num_free == engine.scheduler.pool.num_blocks and not engine.scheduler.running
    return [(o.token_ids, o.text, o.logprobs, o.finish_reason, o.stop_reason) for o in found]


def guilty_in(engine: Engine, slots: list[int], after: int) -> bool:
    """Whether the guilty request is in one of these slots, and so many of its tokens are in the cache."""
    return any(r.slot in slots and is_guilty(r) and r.computed >= after for r in engine.scheduler.running)


def is_guilty(request: Request) -> bool:
    """By its prompt: the toy's tokens are bytes, and printable ones start at "!"."""
    return request.tokens[:8] == [ord(sign) - 33 for sign in "!guilty!"]


def trap_drafter(llm: LLM, monkeypatch: pytest.MonkeyPatch, after: int) -> list[int]:
    """The drafter fails on purpose, after it has done its work, whenever the guilty request is among the groups."""
    engine, failures = llm.engine, list[int]()
    assert engine.drafter is not None
    name = "guess" if isinstance(engine.drafter, LookUpDrafter) else "propose"
    drafts = getattr(engine.drafter, name)

    def fails(*given: Any) -> Any:
        draft, slots = drafts(*given), given[2] if name == "guess" else given[0].slots
        if guilty_in(engine, slots.tolist(), after):
            failures.append(len(slots))
            raise RuntimeError("on purpose")
        return draft

    monkeypatch.setattr(engine.drafter, name, fails)
    return failures


def trap_judge(llm: LLM, monkeypatch: pytest.MonkeyPatch, after: int) -> list[int]:
    """The pass of the guilty request fails once everyone's tokens are written: as bad as it gets."""
    engine, failures, settle = llm.engine, list[int](), advance.settle

    def fails(judge: Any, logits: Any, layout: Any, state: Any, seg: Segments, limits: Any) -> Any:
        settled = settle(judge, logits, layout, state, seg, limits)
        if guilty_in(engine, seg.slots.tolist(), after):
            failures.append(len(seg.slots))
            raise IndexError("no such logit")
        return settled

    monkeypatch.setattr(advance, "settle", fails)
    return failures


def trap_seat(llm: LLM, monkeypatch: pytest.MonkeyPatch, after: int) -> list[int]:
    """What the guilty request asks for cannot be written to its slot."""
    failures, seat = list[int](), SlotState.seat

    def fails(self: SlotState, request: Request) -> None:
        if is_guilty(request):
            failures.append(request.slot)
            raise IndexError("bias out of range")
        seat(self, request)

    monkeypatch.setattr(SlotState, "seat", fails)
    return failures


def trap_reset(llm: LLM, monkeypatch: pytest.MonkeyPatch, after: int) -> list[int]:
    """The drafter fails on the guilty request, and once more when it is told to forget it."""
    failures = trap_drafter(llm, monkeypatch, after)
    drafter = llm.engine.drafter
    assert drafter is not None
    reset = drafter.reset

    def fails(slot: int) -> None:
        if guilty_in(llm.engine, [slot], after):
            raise KeyError(slot)
        reset(slot)

    monkeypatch.setattr(drafter, "reset", fails)
    return failures


@pytest.fixture(scope="module")
def undisturbed(toy_model: Path) -> list[Answer]:
    """What plain decoding says to everyone, each alone in its batch but for the rest of them."""
    return answers(LLM(str(toy_model), device="cpu", max_model_len=256, max_num_seqs=32))


@pytest.fixture(scope="module")
def weak(toy_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shallow_copy(toy_model, [0], tmp_path_factory.mktemp("weak"))


def held(llm: LLM, failures: list[int], undisturbed: list[Answer], says: str) -> None:
    """The guilty one ends with an error and a prefix of its text, the others with all of theirs."""
    for _ in range(2):  # the second time from the prefix cache
        failures.clear()
        got = answers(llm)
        guilty, want = got.pop(7), [*undisturbed[:7], *undisturbed[8:]]
        assert failures, "the trap never closed"
        assert guilty[3] == "error" and says in guilty[4]
        assert guilty[0] == undisturbed[7][0][: len(guilty[0])]
        assert got == want


TRAPS: list[tuple[str, Callable[..., list[int]], int, str]] = [
    ("drafter", trap_drafter, 50, "RuntimeError: on purpose"),
    ("drafter at once", trap_drafter, 0, "RuntimeError: on purpose"),
    ("logits", trap_judge, 45, "IndexError: no such logit"),
    ("seat", trap_seat, 0, "IndexError: bias"),
    ("reset", trap_reset, 50, "RuntimeError: on purpose"),
]


@pytest.mark.parametrize(("trap", "after", "says"), [t[1:] for t in TRAPS], ids=[t[0] for t in TRAPS])
def test_neighbours_do_not_notice(
    toy_model: Path, undisturbed: list[Answer], monkeypatch: pytest.MonkeyPatch, trap: Any, after: int, says: str
) -> None:
    llm = LLM(str(toy_model), device="cpu", max_model_len=256, max_num_seqs=32, speculative_config=NGRAM)
    held(llm, trap(llm, monkeypatch, after), undisturbed, says)
    assert llm.engine.stats.spec.num_accepted_tokens > 0


@pytest.mark.parametrize("method", ["suffix", "draft_model"])
@pytest.mark.parametrize("trap", [trap_drafter, trap_judge])
def test_trees_chunks_and_few_blocks(
    toy_model: Path, weak: Path, undisturbed: list[Answer], monkeypatch: pytest.MonkeyPatch, method: str, trap: Any
) -> None:
    """Prompts are read in chunks of 16 among drafts that are trees, and requests are put off for want of blocks."""
    tree = {"method": method, "model": str(weak), "num_speculative_tokens": 3, "tree": {"max_nodes": 8, "top_k": 2}}
    llm = LLM(
        str(toy_model),
        device="cpu",
        max_model_len=256,
        max_num_seqs=12,
        block_size=4,
        max_num_batched_tokens=64,
        long_prefill_token_threshold=16,
        num_gpu_blocks_override=110,
        speculative_config=SUFFIX if method == "suffix" else tree,
    )
    held(llm, trap(llm, monkeypatch, 16), undisturbed, "on purpose" if trap is trap_drafter else "no such logit")
    assert llm.engine.stats.preemptions > 0 < llm.engine.stats.prefix_cache_hits


@pytest.mark.parametrize("what", ["consume", "look_ahead", "masks"])
def test_a_grammar_that_fails(
    toy_model: Path, undisturbed: list[Answer], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Reading a token, masking a draft, or the masks themselves: of one request, others' grammars go on."""
    llm = LLM(str(toy_model), device="cpu", max_model_len=256, max_num_seqs=32, speculative_config=NGRAM)
    name = "consume" if what == "consume" else "look_ahead"
    real, failures = getattr(Grammar, name), list[int]()

    def fails(self: Grammar, *arguments: Any) -> Any:
        if not any(r.grammar is self and is_guilty(r) for r in llm.engine.scheduler.running):
            return real(self, *arguments)
        failures.append(1)
        if what != "masks":
            raise ValueError("in the midst of the grammar")
        found = real(self, *arguments)
        self.masks = self.masks[None]  # of another shape than the others': they cannot be put together
        return found

    monkeypatch.setattr(Grammar, name, fails)
    asked = params()
    asked[7] = SamplingParams(max_tokens=20, seed=1, structured_outputs=StructuredOutputsParams(regex="[a-z]{9,40}"))
    got = answers(llm, asked)
    guilty = got.pop(7)
    assert failures and guilty[3] == "error" and ("in the midst" in guilty[4] or what == "masks"), guilty
    assert got == [*undisturbed[:7], *undisturbed[8:]]


def test_when_everyone_fails_the_step_fails(toy_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = LLM(str(toy_model), device="cpu", max_model_len=256, max_num_seqs=32, speculative_config=NGRAM)
    drafter, passes = llm.engine.drafter, list[int]()
    assert drafter is not None
    with monkeypatch.context() as patched:

        def fails(texts: Any, rows: Any, slots: Any, *given: Any) -> Any:
            passes.append(len(slots))
            raise RuntimeError("the device is gone")

        patched.setattr(drafter, "guess", fails)
        with pytest.raises(RuntimeError, match="the device is gone"):
            llm.generate(prompts(), params(), use_tqdm=False)
        assert len(passes) <= 2 * (NEIGHBOURS + 1)
    pool = llm.engine.scheduler.pool
    assert pool.num_free == pool.num_blocks
    assert all(answer[3] != "error" for answer in answers(llm))  # and the engine is as good as before


# --- the search itself ----------------------------------------------------------------------------------------------


def item(number: int) -> ScheduledRequest:
    request = Request(str(number), number, 1, [0], SamplingParams(), 0, frozenset(), [], 9, None)
    return ScheduledRequest(request, 0, 1, 0, True, 1, True, 0, 1)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.booleans(), min_size=2, max_size=70), st.integers(0, 70))
def test_halves_find_exactly_the_guilty(guilty: list[bool], most: int) -> None:
    """Whoever fails alone is named; everyone else runs once, though a pass of more than `most` of them fails too."""
    scheduled, passes, ran = [item(i) for i in range(len(guilty))], 0, list[int]()

    def again(part: list[ScheduledRequest]) -> list[Update]:
        nonlocal passes
        passes += 1
        if len(part) > max(1, most) or any(guilty[one.request.arrival] for one in part):
            raise RuntimeError(str(part[0].request.arrival))
        ran.extend(one.request.arrival for one in part)
        return [Update(one.request, [1], 0) for one in part]

    if all(guilty):
        with pytest.raises(ValueError, match="the first"):
            isolate(scheduled, again, ValueError("the first"))
    else:
        updates, culprits = isolate(scheduled, again, ValueError("the first"))
        assert [update.request.arrival for update in updates] == ran == [i for i, bad in enumerate(guilty) if not bad]
        found = {request.arrival: str(error) for request, error in culprits.items()}
        assert found == {i: str(i) for i, bad in enumerate(guilty) if bad}
    assert passes <= 2 * len(scheduled)
    if sum(guilty) == 1 and most == 70:
        assert passes <= 2 * (len(guilty) - 1).bit_length()


def test_a_dead_device_is_not_searched() -> None:
    def again(part: list[ScheduledRequest]) -> list[Update]:
        raise AssertionError("nothing more can run there")

    with pytest.raises(torch.AcceleratorError):
        isolate([item(0), item(1)], again, torch.AcceleratorError("illegal memory access"))


# --- through the server ---------------------------------------------------------------------------------------------

TRAP = """
class Trap:
    def __init__(self, vllm_config):
        pass

    def propose(self, sampled_token_ids, num_tokens_no_spec, token_ids_cpu, slot_mappings=None):
        for fresh, length, row in zip(sampled_token_ids, num_tokens_no_spec, token_ids_cpu):
            if length > 12 and "!!!!!" in "".join(map(chr, row[:length] + 33)):
                raise RuntimeError("five bangs")
        return [list(fresh[-2:]) for fresh in sampled_token_ids]
"""


@pytest.fixture(scope="module")
def server(toy_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    place = tmp_path_factory.mktemp("drafter")
    (place / "trapped_drafter.py").write_text(TRAP)
    spec = {"method": "custom_class", "model": "trapped_drafter.Trap", "num_speculative_tokens": 2}
    paths = os.pathsep.join([str(place), *filter(None, [os.environ.get("PYTHONPATH")])])
    with served(toy_model, spec=spec, PYTHONPATH=paths) as running:
        yield running


def ask(server: Served, prompt: str, **more: Any) -> httpx.Response:
    asked = {"prompt": prompt, "max_tokens": 40, "ignore_eos": True, "temperature": 0.8, "seed": 3, **more}
    return httpx.post(f"{server.url}/v1/completions", json=asked, timeout=60)


def texts(answer: httpx.Response) -> list[str]:
    assert answer.status_code == 200, answer.text
    return [choice["text"] for choice in answer.json()["choices"]]


def test_twenty_clients_beside_guilty_ones(server: Served) -> None:
    engine, calm = server.engine_pid(), [f"calm {i}" for i in range(NEIGHBOURS)]
    alone = [texts(ask(server, prompt)) for prompt in calm]
    with ThreadPoolExecutor(NEIGHBOURS + 4) as pool:
        guilty = [pool.submit(ask, server, "!!!!!", n=1 + i % 2) for i in range(12)]
        together = list(pool.map(lambda prompt: texts(ask(server, prompt)), calm))
        said = [one.result() for one in guilty]
    assert together == alone
    assert [(one.status_code, one.json()["error"]["code"]) for one in said] == [(500, "engine_failed")] * 12
    server.until_idle()
    assert server.metrics()["vllm:kv_cache_usage_perc"] == 0 and server.engine_pid() == engine


def test_guilty_requests_one_by_one_restart_nothing(server: Served) -> None:
    """Each is alone in its step, and no step between them succeeds: still it is they who fail, not the engine."""
    engine = server.engine_pid()
    for _ in range(6):
        assert ask(server, "!!!!! and ten more letters").status_code == 500
    assert server.engine_pid() == engine and len(texts(ask(server, "calm"))) == 1
