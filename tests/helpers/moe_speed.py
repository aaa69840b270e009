"""How fast a GPU runs mixtures of experts, against the bytes that must be read: `python moe_speed.py [rows ...]`.

Layers of Qwen3-30B-A3B's shape (128 experts, 8 chosen, hidden 2048, inner 768, bf16), captured as one graph with
different weights in each, as in a model. Random rows choose nearly as many experts as rows can: what is read is counted
from what they chose.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
from torch import Tensor

from augury.kernels import choose
from augury.model.layers import Linear, Mixture

EXPERTS, CHOSEN, HIDDEN, INNER, LAYERS = 128, 8, 2048, 768, 4
ROWS = (1, 8, 32, 128)
REPLAYS = 50
BANDWIDTH = 4.47e12  # bytes a second that an H200 was seen to read


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16) * shape[-1] ** -0.5


def make_layers(exact: bool) -> list[Mixture]:
    ops = choose(torch.device("cuda"), exact)
    return [
        Mixture(
            ops,
            Linear(ops, random(EXPERTS, HIDDEN) * HIDDEN**0.5),
            random(EXPERTS, 2 * INNER, HIDDEN),
            random(EXPERTS, HIDDEN, INNER),
            CHOSEN,
            True,
        )
        for _ in range(LAYERS)
    ]


def seconds(call: Callable[[], object]) -> float:
    """Of one replay of the call, captured."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        call()
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for count in (5, REPLAYS):
        begin.record()
        for _ in range(count):
            graph.replay()
        end.record()
        end.synchronize()
    return begin.elapsed_time(end) / REPLAYS / 1000


def bytes_read(layers: list[Mixture], x: Tensor) -> float:
    """A layer, on average: the router, and the matrices of every expert that some row chose."""
    total = 0
    for layer in layers:
        _, chosen = layer.ops.route(layer.router(x), layer.count, layer.normalise)
        total += layer.router.weight.nbytes + len(chosen.unique()) * (layer.gate_up[0].nbytes + layer.down[0].nbytes)
    return total / len(layers)


def main() -> None:
    """A line for each number of rows, in default and in exact mode."""
    sizes = [int(word) for word in sys.argv[1:]] or ROWS
    print(f"{torch.cuda.get_device_name()}, {LAYERS} layers, microseconds a layer")
    for exact in (False, True):
        layers = make_layers(exact)
        for rows in sizes:
            x = random(rows, HIDDEN) * HIDDEN**0.5
            found = [layer.ops.route(layer.router(x), layer.count, layer.normalise) for layer in layers]

            def whole(x: Tensor = x, layers: list[Mixture] = layers) -> None:
                for layer in layers:
                    layer(x)

            def products(
                x: Tensor = x, layers: list[Mixture] = layers, found: list[tuple[Tensor, Tensor]] = found
            ) -> None:
                for layer, (shares, chosen) in zip(layers, found, strict=True):
                    layer.ops.run_experts(x, layer.gate_up, layer.down, chosen, shares)

            took, inside, read = seconds(whole) / LAYERS, seconds(products) / LAYERS, bytes_read(layers, x)
            print(
                f"{'exact' if exact else 'plain'} {rows:5} rows: {took * 1e6:7.1f} us, without the router "
                f"{inside * 1e6:7.1f}; {read / 1e6:7.1f} MB, {read / took / 1e12:.2f} TB/s, "
                f"{read / took / BANDWIDTH:4.0%} of what the memory gives"
            )
        del layers


if __name__ == "__main__":
    main()
