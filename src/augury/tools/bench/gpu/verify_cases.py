"""Cases for verification: a pass of chains, from the target's logits to the tokens that every request gains.

Logits are as peaked as those of a language model on text, since that decides how long a draw takes: 256 tokens of a
row are its head, the r-th likeliest of them at 18 - s log r with an s between 0.6 and 3 drawn for each row, and the
rest are normal with a deviation of 2.5. At 128,256 tokens such rows have an entropy of 2.7 nats on average; at
temperature 0.8, top-p 0.9 keeps at most 4 tokens in half of the rows and 31 on average. Drafts are drawn from a
distribution near the target's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from augury.config.speculative import SpeculativeConfig
from augury.engine.judge import Judge, make_judge
from augury.engine.rows import PassLayout, Segments, StepShape, lay_out
from augury.engine.settle import DraftLimits, settle
from augury.engine.state import SlotState
from augury.kernels import verify, verify_probs
from augury.methods.registry import METHODS
from augury.tools.bench.gpu.micro_cases import BLOCK, KernelCase, kind_of
from augury.tools.bench.gpu.shapes import Config
from augury.verify.rules import RULES
from augury.verify.sampling import Outcome, SlotSampling
from augury.verify.verdict import finish, last_noise, uniforms

Judges = Callable[[str], Judge]  # by the rule's name
HEAD, TOP, FALL, DEVIATION = 256, 18.0, (0.6, 3.0), 2.5
TEMPERATURE, TOP_P = 0.8, 0.9
UNLIKE = 0.5  # deviation of the drafter's scores from the target's
SAMPLED = f"T={TEMPERATURE:g} top-p {TOP_P:g}"


def verification(config: Config, batch: int, tokens: int, context: int, device: torch.device) -> Iterator[KernelCase]:
    """Cases for every rule over chains of `tokens` drafts; without drafts there is only the draw."""
    lines, vocab = batch * (1 + tokens), config["vocab_size"]
    logits = text_logits(lines, vocab, device)
    drafts, probs = _drafts(logits.view(batch, 1 + tokens, vocab)[:, :tokens])

    def case(rule: str, greedy: bool, sampled: Tensor | None) -> KernelCase:
        state, table = _state(drafts, context, vocab, greedy), _segments(batch, tokens, context, device)
        if sampled is not None:
            state.draft = replace(state.draft, probs=torch.cat([sampled, sampled[:1]]))
        shape = StepShape(batch, lines, lines, context, True, greedy, tokens > 0, False)
        layout, seg = lay_out(state, table, shape, lines, BLOCK), Segments.pack(table)

        def run(faces: Any, given: Tensor) -> Tensor:
            return settle(faces.judges(rule), given, layout, state, seg, DraftLimits()).outcome.emitted

        name = f"{rule} {'greedy' if greedy else SAMPLED}, {batch}x{1 + tokens}"
        return KernelCase(name, logits.numel() * logits.element_size(), lambda seed: logits.clone(), run)

    yield case("coupled", True, None)
    yield case("coupled", False, None)
    if tokens:
        yield case("standard", False, probs)
        yield case("block", False, probs)


def text_logits(lines: int, vocab: int, device: torch.device) -> Tensor:
    """Logits [lines, vocab] in the dtype that a target on the device writes, each row with likely tokens of its own."""
    random = torch.Generator(device).manual_seed(0)
    logits = DEVIATION * torch.randn(lines, vocab, generator=random, device=device)
    fall = FALL[0] + (FALL[1] - FALL[0]) * torch.rand(lines, 1, generator=random, device=device)
    head = min(HEAD, vocab // 4)
    where = torch.rand(lines, vocab, generator=random, device=device).topk(head, 1).indices
    rank = torch.arange(1, head + 1, device=device)
    return logits.scatter_(1, where, TOP - fall * rank.log()).to(kind_of(device))


def _drafts(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens [G, N] for logits [G, N, V], and the distributions that they were drawn from."""
    random = torch.Generator(logits.device).manual_seed(1)
    noise = torch.randn(logits.shape, generator=random, device=logits.device)
    probs = torch.softmax(logits.float() / TEMPERATURE + UNLIKE * noise, -1)
    groups, nodes, vocab = logits.shape
    if not nodes:
        return torch.zeros(groups, 0, dtype=torch.int64, device=logits.device), probs
    return torch.multinomial(probs.view(-1, vocab), 1, generator=random).view(groups, nodes), probs


def _state(drafts: Tensor, context: int, vocab: int, greedy: bool) -> SlotState:
    """The state of requests with `context` known tokens each and a chain of drafts pending."""
    groups, nodes = drafts.shape
    state = SlotState.allocate(groups, context + nodes + 1, nodes, BLOCK, vocab, drafts.device)
    state.draft.tokens[:groups], state.draft.count[:groups] = drafts, nodes
    state.tracks = drafts.is_cuda  # as in the engine, which launches a pass before the previous one has ended
    state.limit.fill_(context + nodes + 2)
    state.sampling.seed.copy_(torch.arange(groups + 1))
    if not greedy:
        state.sampling.temperature.fill_(TEMPERATURE)
        state.sampling.top_p.fill_(TOP_P)
    return state


def _segments(groups: int, nodes: int, context: int, device: torch.device) -> Tensor:
    """The segment table of the pass, as the host sends it: one known token per request, then its drafts."""
    fields = (context - 1, 1, nodes, 1, 1, context + nodes + 1, nodes)
    table = torch.tensor(fields, device=device)[:, None].expand(-1, groups)
    return torch.cat([torch.arange(groups, device=device)[None], table])


def device_judges(device: torch.device) -> Judges:
    """The engine's own judges on a device, by rule, for drafts that are sampled."""
    method = next(name for name, card in METHODS.items() if "draft_sample_method" in card.keys)

    @cache
    def judge(rule: str) -> Judge:
        keys: dict[str, Any] = {"rejection_sample_method": rule, "draft_sample_method": "probabilistic"}
        return make_judge(SpeculativeConfig(method=method, num_speculative_tokens=1, **keys), device)

    return judge


def reference_judges(rule: str) -> Judge:
    """The judge of a rule over chains in torch, as verify/ defines it."""

    def decide(logits: Tensor, layout: PassLayout, sampling: SlotSampling, slots: Tensor) -> Outcome:
        draft, first, ends = layout.draft, layout.first, layout.ends
        judge = RULES[rule].judge
        if judge is None:
            return verify.walk(verify.draw(logits, layout.draws, sampling), first, draft)
        groups, nodes = draft.tokens.shape
        probs = verify_probs.probabilities(logits.float(), layout.draws, sampling).view(groups, nodes + 1, -1)
        seeds, place = sampling.seed[slots], torch.arange(nodes, device=logits.device)
        verdict = judge(probs, draft, first >= 0, uniforms(seeds, ends[:, None] + place, nodes))
        return finish(verdict, last_noise(verdict, seeds, ends))

    return Judge(decide)
