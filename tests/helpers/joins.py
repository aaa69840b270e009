"""How evenly tokens come while requests join and leave: `python tests/helpers/joins.py [--seconds 120] [--k 0]`.

The engine alone, random weights of a shape, as `augury bench gpu` makes them. Three parts: `joins` keeps 64 requests
alive whose prompts and answers have random lengths, and prints the gaps between two moments at which a request gets
tokens, beside the time of a pass that reads a whole chunk of a prompt; `long` adds one request of 32,000 tokens to 63
short ones, and prints the step before and after; `grammar` (the embedded model) gives one of 64 requests a grammar.
"""

from __future__ import annotations

import argparse
import json
import time
from random import Random
from statistics import median, quantiles
from typing import Any

from augury import LLM, SamplingParams
from augury.tools.bench.gpu.rig import Rig, Sizes, bench_of
from augury.tools.bench.gpu.shapes import drafter_of, shape_of

REQUESTS = 64
STALL = 0.5  # seconds of a step that is told by itself
LONG = 32_000


def add(rig: Rig, random: Random, prompt: int, new: int) -> Any:
    """One more request of random tokens."""
    vocab = rig.engine.target.vocab_size
    params = SamplingParams(temperature=0.0, max_tokens=new, ignore_eos=True, detokenize=False)
    (request,) = rig._intake.requests("joins", [random.randrange(vocab) for _ in range(prompt)], params)
    rig.engine.add(request)
    return request


def joins(rig: Rig, seconds: float, chunk: int) -> dict[str, Any]:
    """Gaps between a request's tokens while others come and go."""
    random, gaps, tokens = Random(0), [], 0
    stalls: list[dict[str, Any]] = []
    seen: dict[Any, tuple[int, float]] = {}  # by request: ids are given again
    live: list[Any] = []
    begun = time.perf_counter()
    while (now := time.perf_counter()) - begun < seconds:
        live = [r for r in live if r.finish_reason is None]
        live += [
            add(rig, random, random.randint(64, 1024), random.randint(32, 256)) for _ in range(REQUESTS - len(live))
        ]
        rig.engine.step()
        after = time.perf_counter()
        if after - now > STALL:
            last = rig.engine.last
            what = {"requests": last.requests, "rows": last.rows, "prompt rows": last.prompt_rows}
            stalls.append({"at": round(now - begun, 1), "seconds": round(after - now, 1), **what})
        for request in live:
            count, when = seen.get(request, (0, after))
            if request.length - request.prompt_len > count:
                if count and after - begun > 5:  # the first ones come in a crowd
                    gaps.append(after - when)
                tokens += request.length - request.prompt_len - count
                seen[request] = request.length - request.prompt_len, after
    rig.drop(live)
    cuts = quantiles(gaps, n=1000)
    return {
        "tokens a second": tokens / seconds,
        "gap ms": {name: round(1000 * cuts[i - 1], 2) for name, i in (("p50", 500), ("p99", 990), ("p99.9", 999))}
        | {"most": round(1000 * max(gaps), 2)},
        "stalls": stalls,
        "a chunk's pass ms": round(1000 * chunk_pass(rig, chunk), 2),
    }


def chunk_pass(rig: Rig, chunk: int) -> float:
    """Seconds of a pass that reads a chunk beside 63 requests that decode."""
    random, found = Random(1), []
    live = [add(rig, random, 64, 200) for _ in range(REQUESTS - 1)]
    while any(len(r.output) < 8 for r in live):
        rig.engine.step()
    for _ in range(5):
        extra = add(rig, random, chunk, 2)
        begun, steps = time.perf_counter(), 0
        while not extra.output:
            rig.engine.step()
            steps += 1
        rig.wait()
        found.append((time.perf_counter() - begun) / max(1, steps - 1))
        while extra.finish_reason is None:
            rig.engine.step()
    rig.drop(live)
    return median(found)


def long_one(rig: Rig, length: int) -> dict[str, Any]:
    """The step of 63 short requests, without and with a long one that decodes beside them."""
    random = Random(2)
    live = [add(rig, random, 128, 700) for _ in range(REQUESTS - 1)]
    while any(len(r.output) < 8 for r in live):
        rig.engine.step()
    before = steps_of(rig)
    great = add(rig, random, length, 400)
    while len(great.output) < 4:
        rig.engine.step()
    after = steps_of(rig)
    shapes = rig.engine.target.layer_shapes
    width = sum(s.kv_heads * (s.key_dim + s.value_dim) for s in shapes)
    rig.drop([*live, great])
    return {
        "step ms": [round(1000 * before, 3), round(1000 * after, 3)],
        "more %": round(100 * (after / before - 1), 1),
        "its keys and values, MB": round(length * width * 2 / 1e6),
    }


def grammar(device: str) -> dict[str, Any]:
    """Seconds of 64 answers of the embedded model, by turns without a grammar and with one for one of them."""
    llm = LLM("default", device=device, max_model_len=1024, max_num_seqs=REQUESTS, num_gpu_blocks_override=6000)
    prompts = [[{"role": "user", "content": f"Write a story about the number {i}."}] for i in range(REQUESTS)]
    plain = SamplingParams(temperature=0.0, max_tokens=256, ignore_eos=True)
    person = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}
    asked: dict[str, Any] = {
        "a regex": {"regex": "([a-z]{1,9} ){400}"},
        "JSON": {"json": {"type": "array", "items": {**person, "required": ["name", "age"]}, "minItems": 60}},
    }
    bound = {name: SamplingParams(temperature=0.0, max_tokens=256, structured_outputs=s) for name, s in asked.items()}
    found: dict[str, list[float]] = {"none": [], **{name: [] for name in bound}}
    for _ in range(6):
        for name, times in found.items():
            begun = time.perf_counter()
            llm.chat(prompts, [bound.get(name, plain), *[plain] * (REQUESTS - 1)], use_tqdm=False)
            times.append(time.perf_counter() - begun)
    seconds = {name: median(times[1:]) for name, times in found.items()}
    slower = {name: round(100 * (seconds[name] / seconds["none"] - 1), 1) for name in bound}
    return {"seconds": {name: round(value, 3) for name, value in seconds.items()}, "slower %": slower}


def steps_of(rig: Rig, count: int = 60) -> float:
    """Seconds of a step, in the middle of decoding."""
    rig.wait()
    begun = time.perf_counter()
    for _ in range(count):
        rig.engine.step()
    rig.wait()
    return (time.perf_counter() - begun) / count


def main() -> None:
    """Run the parts and print a line of JSON for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="llama-8b")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--drafter", default="none")
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--chunk", type=int, default=1024)
    parser.add_argument("--long", type=int, default=LONG)
    parser.add_argument("--parts", nargs="*", default=["joins", "long"])
    given = parser.parse_args()
    if "grammar" in given.parts:
        print(json.dumps({"part": "grammar", **grammar(given.device)}), flush=True)
    if {"joins", "long"}.isdisjoint(given.parts):
        return
    config = shape_of(given.shape)
    drafter = drafter_of(given.drafter, config, None, None, None)
    sizes = Sizes(given.long, 700, REQUESTS)
    with (
        bench_of(config, [drafter], sizes, given.device, False, given.chunk + REQUESTS) as bench,
        bench.rig(drafter) as rig,
    ):
        if "joins" in given.parts:
            print(json.dumps({"part": "joins", **joins(rig, given.seconds, given.chunk)}), flush=True)
        if "long" in given.parts:
            print(json.dumps({"part": "long", **long_one(rig, given.long)}), flush=True)


if __name__ == "__main__":
    main()
