"""What verification takes on a GPU: `python verify_speed.py MODEL TEXT [STEP_MS]` prints a line for each rule.

`augury bench gpu --micro verify` measures the same on made-up logits, without a model's file. Here they are a small
model's on real text, repeated 4 nats lower until they are as wide as Llama 3's. Batch 64, K=5, 128,256 words,
temperature 0.8, top-p 0.9; drafts are drawn from a distribution near the target's. Each rule is timed in a CUDA graph,
and its verdicts are compared with the reference's; the walk of `coupled` is left out, since one kernel does it together
with what a step does anyway.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import torch
from rows import Segment, make_rows, scattered_tables, to
from torch import Tensor

from augury.kernels import block_triton, draw_triton, standard_triton, verify, verify_probs
from augury.model.load import load_target
from augury.model.store import resolve
from augury.model.target import KVCache
from augury.model.tokenizer import Tokenizer
from augury.verify import rejection
from augury.verify.sampling import Draws, Outcome, SlotSampling
from augury.verify.tree import Draft, chain_parents
from augury.verify.verdict import finish, last_noise, uniforms

GROUPS, K, WORDS = 64, 5, 128_256
LINES = GROUPS * (K + 1)
BLOCK, START, COPIES, ROUNDS = 16, 100, 3, 20
DEVICE = torch.device("cuda")


def text_logits(name: str, text: Path) -> Tensor:
    """The model's logits behind the text's first tokens, [LINES, WORDS]."""
    model = resolve(name, quiet=True)
    tokens = Tokenizer(model).encode(text.read_text(), special=False)[:LINES]
    target = load_target(model, "bfloat16", "cuda", LINES, packed=False)
    blocks = -(-LINES // BLOCK)
    target.cache = KVCache.allocate(target.layer_shapes, (blocks + 1) * BLOCK, target.cache_dtype, DEVICE)
    rows = make_rows([Segment(0, 0, tokens)], scattered_tables(1, blocks), BLOCK)
    rows.chunked = True
    logits = target.forward(to(rows, DEVICE)).logits
    beyond = torch.arange(WORDS, device=DEVICE)
    return logits[:, beyond % logits.shape[1]] - 4.0 * (beyond >= logits.shape[1]).to(logits.dtype)


def chain_of(logits: Tensor) -> tuple[Draws, SlotSampling, Tensor, Draft]:
    """A pass of GROUPS chains whose drafts come from a distribution near the target's."""
    random = torch.Generator(DEVICE).manual_seed(0)
    likely = logits.view(GROUPS, K + 1, WORDS)[:, :K].float()
    q = torch.softmax(likely / 0.8 + 0.5 * torch.randn(likely.shape, generator=random, device=DEVICE), -1)
    tokens = torch.multinomial(q.flatten(0, 1), 1, generator=random).view(GROUPS, K)
    sampling = SlotSampling.allocate(GROUPS, DEVICE)
    sampling.temperature.fill_(0.8)
    sampling.top_p.fill_(0.9)
    sampling.seed.copy_(torch.arange(GROUPS))
    node = torch.arange(K + 1, device=DEVICE).repeat(GROUPS)
    slots = torch.arange(GROUPS, device=DEVICE).repeat_interleave(K + 1)
    own = torch.cat([tokens[:, :1], tokens], 1).flatten()
    parents = torch.where(node > 0, torch.arange(LINES, device=DEVICE) - 1, -1)
    history = torch.zeros(GROUPS, START + K + 1, dtype=torch.int64, device=DEVICE)
    draws = Draws(slots, START + node, own, parents, history, LINES, plain=True)
    count = torch.full((GROUPS,), K, device=DEVICE)
    draft = Draft(tokens, chain_parents(GROUPS, K).to(DEVICE), count, q, branching=False)
    return draws, sampling, torch.arange(GROUPS, device=DEVICE) * (K + 1), draft


def micros(call: Callable[[Tensor], object], inputs: list[Tensor]) -> float:
    """Of one call, the best of several replays of a graph that holds one for each input."""
    for logits in inputs:
        call(logits)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for logits in inputs:
            call(logits)
    best = float("inf")
    for _ in range(ROUNDS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        best = min(best, begin.elapsed_time(end))
    return 1000 * best / len(inputs)


def differences(got: Outcome, want: Outcome) -> int:
    """Numbers of two outcomes that are not the same."""
    return sum(int((getattr(got, f.name) != getattr(want, f.name)).sum()) for f in fields(want))


def measure(logits: Tensor, step_ms: float) -> None:
    """Every rule on these logits."""
    draws, sampling, first, draft = chain_of(logits)
    starts = torch.full((GROUPS,), START, device=DEVICE)
    tests = uniforms(sampling.seed, starts[:, None] + torch.arange(K, device=DEVICE), K)
    inputs = [logits.clone() for _ in range(COPIES)]
    probs = verify_probs.probabilities(logits.float(), draws, sampling).view(GROUPS, K + 1, WORDS)
    walked = verify.walk(verify.draw(logits, draws, sampling), first, draft)

    def drawn(x: Tensor) -> Tensor:
        return draw_triton.draw(x, draws, sampling)

    def ruled(rule: Callable[..., Outcome]) -> Callable[[Tensor], Outcome]:
        return lambda x: rule(x, draws, sampling, first, draft, tests, sampling.seed, starts)

    def judged(rule: Callable[..., rejection.Verdict]) -> Outcome:
        verdict = rule(probs, draft, first >= 0, tests)
        return finish(verdict, last_noise(verdict, sampling.seed, starts))

    rules = {
        "coupled": (drawn, walked),
        "standard": (ruled(standard_triton.standard), judged(rejection.standard)),
        "block": (ruled(block_triton.block), judged(rejection.block)),
    }
    for name, (ours, want) in rules.items():
        took = micros(ours, inputs)
        got = ours(logits)
        outcome = verify.walk(got, first, draft) if isinstance(got, Tensor) else got
        found = {"rule": name, "us": round(took, 1), "share": round(took / step_ms / 1000, 4)}
        found |= {"wrong": differences(outcome, want), "accepted": float(want.accepted.float().mean())}
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    with torch.no_grad():
        measure(
            text_logits(sys.argv[1], Path(sys.argv[2])).contiguous(), float(sys.argv[3]) if len(sys.argv) > 3 else 14.3
        )
