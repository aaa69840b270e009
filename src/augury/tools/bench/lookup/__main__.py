"""Model-free drafters side by side: `make bench-drafters`, or python -m augury.tools.bench.lookup --help.

n-gram: the incremental index against the simplest rescan of the whole text, on the same texts. Suffix: our cache
against Arctic's, on the same requests. Times are medians on this machine, each with the Python call around it.

Arctic is optional. Its suffix cache alone builds without CUDA or torch:
    python -m venv A && A/bin/pip install nanobind==2.9.2 numpy && A/bin/pip download --no-deps arctic-inference
    unpack; cmake csrc/suffix_decoding -DPython_EXECUTABLE=A/bin/python; make
    install the built _C module beside the package's suffix_decoding Python files, in environment A
    python -m augury.tools.bench.lookup --arctic A/bin/python
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from augury.tools.bench.lookup import suffix_replay
from augury.tools.bench.lookup.suffix_replay import replay_ours

LENGTHS = (1_000, 8_000, 32_000, 131_000)
STEPS = 400
BATCH = 64
DRAFT = 8


def rescan(njit: Any) -> Any:
    """The baseline: a Knuth-Morris-Pratt pass over the whole text at every step, earliest match."""

    @njit(nogil=True)
    def longest_match(tokens: Any, length: int, min_n: int, max_n: int, k: int, limit: int) -> Any:
        k = min(k, limit - length)
        if k <= 0:
            return tokens[:0]
        last = length - 1
        table = np.zeros(max(max_n, 1), np.int64)
        longest, place, matched = 0, 0, 0
        for i in range(1, length):
            while matched > 0 and tokens[last - matched] != tokens[last - i]:
                matched = table[matched - 1]
            if tokens[last - matched] == tokens[last - i]:
                matched += 1
            if matched > 0 and matched >= longest:
                longest, place = matched, i
            if i < max_n:
                table[i] = matched
            if matched == max_n:
                matched = table[max_n - 1]
        start = last - place + longest if longest >= max(min_n, 1) else length
        return tokens[start : min(start + k, length)]

    return longest_match


def phrases(seed: int, tokens: int) -> np.ndarray:
    """A text that repeats itself as texts do: phrases and their words by Zipf's law, a tenth of the phrases altered."""
    rng = np.random.default_rng(seed)
    book = [rng.zipf(1.3, rng.integers(4, 25)) % 20_000 for _ in range(600)]
    parts, total = [], 0
    while total < tokens:
        part = book[rng.zipf(1.2) % len(book)].copy()
        if rng.random() < 0.1:
            part[rng.integers(len(part))] = rng.integers(20_000)
        parts.append(part)
        total += len(part)
    return np.concatenate(parts)[:tokens].astype(np.int64)


def microseconds(call: Callable[[], object]) -> float:
    """How long one call takes."""
    start = time.perf_counter_ns()
    call()
    return (time.perf_counter_ns() - start) / 1e3


def ngram_line(length: int, min_n: int, max_n: int, baseline: Callable[..., Any]) -> dict[str, float]:
    """Both n-gram lookups over the same steps of the same text, checked to agree; then a batch."""
    from augury.index.ngram import NgramIndex

    history = np.stack([phrases(seed, length + STEPS) for seed in range(8)])
    tokens, counts = np.zeros((BATCH, DRAFT), np.int64), np.zeros(BATCH, np.int64)
    index, slots, budget = NgramIndex(min_n, max_n), np.arange(BATCH), np.full(BATCH, DRAFT)
    one, lengths, limit = slots[:1], np.full(1, length), length + STEPS + 100
    single = (history, one, one, lengths, budget[:1], limit, tokens[:1], counts[:1])
    NgramIndex(min_n, max_n).propose(*single)  # compiles
    baseline(history[0], length, min_n, max_n, DRAFT, limit)
    cold = microseconds(lambda: index.propose(*single))
    ours, theirs, drafts = [], [], []
    for step in range(1, STEPS):
        lengths[0] = length + step
        ours.append(microseconds(lambda: index.propose(*single)))
        drafts.append(tokens[0, : counts[0]].tolist())
    for step in range(1, STEPS):  # in a loop of its own: it would evict our tables from the processor's caches
        ask = (history[0], length + step, min_n, max_n, DRAFT, limit)
        found: list[Any] = []
        theirs.append(microseconds(lambda ask=ask, found=found: found.append(baseline(*ask))))  # type: ignore[misc]
        assert drafts[step - 1] == found[0].tolist()
    rows, batch_index, many = slots % 8, NgramIndex(min_n, max_n), np.full(BATCH, length)
    batch = []
    for _ in range(60):
        args = (history, rows, slots, many, budget, limit, tokens, counts)
        batch.append(microseconds(lambda args=args: batch_index.propose(*args)))  # type: ignore[misc]
        many += 1
    return {
        "tokens": length,
        "cold_ms": cold / 1e3,
        "lookup_us": float(np.median(ours)),
        "lookup_p99_us": float(np.percentile(ours, 99)),
        "batch64_us": float(np.median(batch[1:])),
        "batch64_each_us": float(np.median(batch[1:])) / BATCH,
        "rescan_us": float(np.median(theirs)),
        "ratio": float(np.median(theirs) / np.median(ours)),
        "bytes_per_token": index.bytes / length,
    }


def synthetic_requests() -> list[dict[str, list[int]]]:
    """Requests of 60 + 120 tokens cut from texts that share their phrases."""
    text = phrases(0, 360_000).tolist()
    return [{"prompt": text[i : i + 60], "response": text[i + 60 : i + 180]} for i in range(0, len(text) - 180, 180)]


def arctic_figures(python: str | None, requests: Path, depth: int, held: int) -> dict[str, Any] | str:
    """Arctic's figures from the interpreter that has it, or why there are none."""
    program = [python or sys.executable, suffix_replay.__file__, str(requests), str(depth), str(held)]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    if done.returncode:
        return done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "failed"
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def suffix_figures(options: argparse.Namespace) -> dict[str, Any]:
    """Our figures and Arctic's for the same requests."""
    if options.corpus:
        requests = [json.loads(line) for line in options.corpus.read_text().splitlines()]
    else:
        requests = synthetic_requests()
    held = min(options.held, len(requests) // 4)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "requests.jsonl"
        path.write_text("\n".join(json.dumps(r) for r in requests))
        return {
            "corpus": options.corpus.name if options.corpus else "synthetic phrases",
            "requests": len(requests),
            "held": held,
            "depth": options.depth,
            "ours": replay_ours(requests, options.depth, held),
            "arctic": arctic_figures(options.arctic, path, options.depth, held),
        }


def show_ngram(lines: list[dict[str, float]], min_n: int, max_n: int) -> None:
    print(f"n-gram lookup, n {min_n} to {max_n}, earliest match, {DRAFT} tokens; median of {STEPS} steps of one token")
    print("   tokens  ours us   p99 us  batch of 64 us  each us  rescan us   ratio  cold ms  bytes/token")
    for x in lines:
        print(
            f"{x['tokens']:9.0f}{x['lookup_us']:9.2f}{x['lookup_p99_us']:9.2f}{x['batch64_us']:16.1f}"
            f"{x['batch64_each_us']:9.2f}{x['rescan_us']:11.1f}{x['ratio']:8.1f}{x['cold_ms']:9.2f}"
            f"{x['bytes_per_token']:13.1f}"
        )


def show_suffix(figures: dict[str, Any]) -> None:
    print(
        f"\nsuffix, {figures['corpus']}: {figures['requests']} requests, the last {figures['held']} replayed, "
        f"depth {figures['depth']}"
    )
    rows = [
        ("tokens kept", "tokens", "{:.0f}"),
        ("build, tokens/s", "build_tokens_per_s", "{:.0f}"),
        ("bytes per token (arrays)", "bytes_per_token", "{:.1f}"),
        ("bytes per token (resident)", "rss_per_token", "{:.1f}"),
        ("append us a call, p50", "append_us", "{:.2f}"),
        ("speculate us a call, p50", "speculate_us", "{:.2f}"),
        ("speculate us a call, p99", "speculate_p99_us", "{:.2f}"),
        ("tree: speculate us a call, p50", "tree_us", "{:.2f}"),
        ("batch of 64: speculate us each", "speculate64_us", "{:.2f}"),
        ("batch of 64: append 1 and speculate us each", "step64_us", "{:.2f}"),
        ("acceptance length (path)", "length", "{:.4f}"),
    ]
    arctic = figures["arctic"] if isinstance(figures["arctic"], dict) else {}
    print(f"{'':44}{'ours':>12}{'Arctic':>12}")
    for label, key, form in rows:
        cells = [form.format(f[key]) if key in f else "-" for f in (figures["ours"], arctic)]
        print(f"{label:44}{cells[0]:>12}{cells[1]:>12}")
    if not arctic:
        print(f"Arctic is absent ({figures['arctic']}); the head of this file says how to build it.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--min", type=int, default=5, help="shortest n-gram (vLLM's default: 5)")
    parser.add_argument("--max", type=int, default=5, help="longest n-gram")
    parser.add_argument("--corpus", type=Path, help='JSON lines {"prompt": [ids], "response": [ids]}')
    parser.add_argument("--held", type=int, default=300, help="requests replayed; all before them are cached first")
    parser.add_argument("--depth", type=int, default=24)
    parser.add_argument("--arctic", help="a Python that has Arctic's suffix cache")
    options = parser.parse_args()
    from numba import njit

    baseline = rescan(njit)
    lines = [ngram_line(length, options.min, options.max, baseline) for length in LENGTHS]
    suffix = suffix_figures(options)
    if options.json:
        print(json.dumps({"ngram": lines, "suffix": suffix}, indent=1))
        return
    show_ngram(lines, options.min, options.max)
    show_suffix(suffix)


if __name__ == "__main__":
    main()
