"""The least a step must read, and how fast this machine's memory is."""

from __future__ import annotations

import time

import torch

from augury.methods.registry import METHODS
from augury.tools.bench.gpu.shapes import Config, Drafter

GPU_BYTES, CPU_BYTES, REPEATS = 2 << 30, 64 << 20, 10


def copy_speed(device: torch.device) -> float:
    """Bytes per second that a large copy reads and writes."""
    size = GPU_BYTES if device.type == "cuda" else CPU_BYTES
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    sink = torch.empty_like(source)
    best = min(_seconds(source, sink, device) for _ in range(REPEATS))
    return 2 * size / best


def _seconds(source: torch.Tensor, sink: torch.Tensor, device: torch.device) -> float:
    if device.type != "cuda":
        begun = time.perf_counter()
        sink.copy_(source)
        return time.perf_counter() - begun
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    sink.copy_(source)
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / 1000


def step_bytes(
    shape: Config, drafter: Drafter, batch: int, context: float, itemsize: int, layer_itemsize: int | None = None
) -> dict[str, float]:
    """Bytes that one decode step must read: matrices of the target and of the drafter's passes, keys and values.

    An element takes `itemsize` bytes, a weight of the target's layers `layer_itemsize`.
    """
    cached, share = batch * context, (layer_itemsize or itemsize) / itemsize
    weights = layer_elements(shape) * shape["num_hidden_layers"] * share + _head(shape)
    kv = cached * _cache_elements(shape)
    extra, extra_kv = drafter_elements(shape, drafter), cached * _drafter_cache(shape, drafter)
    parts = {"target": weights, "target_kv": kv, "drafter": extra, "drafter_kv": extra_kv}
    return {name: elements * itemsize for name, elements in parts.items()}


def layer_elements(config: Config, width: int = 0) -> float:
    """Elements of one layer's matrices; `width` is the attention's input width, if it is not the hidden size."""
    hidden, inner, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    return float((width or hidden) * (q + 2 * kv) + q * hidden + 3 * hidden * inner)


def drafter_elements(shape: Config, drafter: Drafter) -> float:
    """Elements of its matrices that a drafter's passes read in one step."""
    config, passes, hidden = drafter.config, drafter.tokens, shape["hidden_size"]
    if config is None:
        return 0.0
    card = METHODS[drafter.keys["method"]]
    words = config.get("draft_vocab_size", shape["vocab_size"]) * hidden
    if card.features == "none":  # a whole model
        return float(passes * (layer_elements(config) * config["num_hidden_layers"] + _head(config)))
    if card.lookahead == 0:  # heads on the last hidden state, a matrix and an output each
        return float(passes * (hidden * hidden + words))
    if card.one_pass:
        fc = config["num_hidden_layers"] * hidden * hidden
        return float(fc + layer_elements(config) * config["num_hidden_layers"] + words)
    if card.features == "auxiliary":  # three streams are joined once a step
        return float(3 * hidden * hidden + passes * (layer_elements(config, 2 * hidden) + words))
    return float(passes * (2 * hidden * hidden + layer_elements(config) + words))


def _head(config: Config) -> float:
    return float(config["vocab_size"] * config["hidden_size"])


def _cache_elements(config: Config) -> int:
    return 2 * int(config["num_key_value_heads"]) * int(config["head_dim"]) * int(config["num_hidden_layers"])


def _drafter_cache(shape: Config, drafter: Drafter) -> float:
    """Elements of the drafter's cache read for every token of context in one step."""
    config = drafter.config
    card = METHODS[drafter.keys["method"]] if config is not None else None
    if config is None or card is None or card.lookahead == 0:
        return 0.0
    passes = 1 if card.one_pass else drafter.tokens
    layers = 1 if card.weights == "target" else config["num_hidden_layers"]
    return float(passes * _cache_elements({**shape, **config, "num_hidden_layers": layers}))
