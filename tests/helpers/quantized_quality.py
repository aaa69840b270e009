"""What 8 bits cost a model: `python quantized_quality.py MODEL TEXT [DEVICE [TOKENS [WINDOW]]]` prints a line of JSON.

Perplexity of a text, read in windows a chunk at a time, with plain weights, rounded ones, 8-bit keys and values, and
both; and beside it how far the logits are from the plain model's: the mean divergence (KL, in nats), and how often the
likeliest token is the same one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from rows import Segment, make_rows, scattered_tables, to
from torch import Tensor

from augury.model.load import load_target
from augury.model.target import KVCache, Target
from augury.model.tokenizer import Tokenizer

CHUNK, BLOCK = 256, 16
WAYS = {"plain": (None, None), "fp8 weights": ("fp8", None), "fp8 KV": (None, 1), "both": ("fp8", 1)}


def scores(target: Target, tokens: list[int], cache: torch.dtype, window: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Log-probabilities after each token but a window's last, and the tokens that came."""
    blocks = window // BLOCK
    tables = scattered_tables(1, blocks)
    target.cache = KVCache.allocate(target.layer_shapes, (blocks + 1) * BLOCK, cache, target.device)
    for begin in range(0, len(tokens), window):
        part = tokens[begin : begin + window]
        for start in range(0, len(part), CHUNK):
            rows = make_rows([Segment(0, start, part[start : start + CHUNK])], tables, BLOCK)
            rows.chunked = True
            wanted = torch.tensor(part[start + 1 : start + CHUNK + 1], device=target.device)
            logits = target.forward(to(rows, target.device)).logits[: len(wanted)]
            yield torch.log_softmax(logits.float(), -1), wanted


def measure(model: Path, text: Path, device: str, count: int, window: int) -> dict[str, Any]:
    """All ways of running the model, against the plain one."""
    tokens = Tokenizer(model).encode(text.read_text(), special=False)[:count]
    kind, found = "bfloat16" if device == "cuda" else "float32", {}
    plain = load_target(model, kind, device, window, packed=False)
    for name, (weights, short) in WAYS.items():
        other = load_target(model, kind, device, window, packed=False, quantization=weights)
        cache = torch.float8_e4m3fn if short else other.cache_dtype
        total = apart = same = 0.0
        lines = 0
        pairs = zip(scores(plain, tokens, plain.cache_dtype, window), scores(other, tokens, cache, window), strict=True)
        for (want, token), (got, _) in pairs:
            total -= float(got.gather(1, token[:, None]).sum())
            apart += float((want.exp() * (want - got)).sum())
            same += float((want.argmax(1) == got.argmax(1)).sum())
            lines += len(token)
        mean = torch.tensor(total / lines, dtype=torch.float64)
        found[name] = {"perplexity": float(mean.exp()), "kl": apart / lines, "same_top": same / lines, "tokens": lines}
    return found


if __name__ == "__main__":
    given = sys.argv[3:]
    sizes = [int(word) for word in given[1:]] + [20_000, 1024][len(given[1:]) :]
    with torch.no_grad():
        print(json.dumps(measure(Path(sys.argv[1]), Path(sys.argv[2]), given[0] if given else "cuda", *sizes)))
