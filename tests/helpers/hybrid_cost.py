"""What a pass of five rows costs on a hybrid beside one of one row, without its matrices and its attention.

    OMP_NUM_THREADS=1 python tests/helpers/hybrid_cost.py

Recurrent layers have the states of published models; there are few, and the streams between them are narrower, for
the time of matrices is taken out.
Time is the processor's with one thread, and the wall's with several; the best of many passes counts.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rows import Segment, give_cache, make_rows, scattered_tables
from transformers import GraniteMoeHybridConfig, NemotronHConfig, Qwen3_5TextConfig

from augury.model.adapter import Adapter
from augury.model.states import line_bytes

COMMON: dict[str, Any] = {"vocab_size": 256, "max_position_embeddings": 512, "bos_token_id": None, "eos_token_id": 3}
LAYERS = 8
CONFIGS: dict[str, Callable[[], Any]] = {
    "Qwen3-Next's gated delta rule": lambda: Qwen3_5TextConfig(
        **COMMON,
        hidden_size=512,
        intermediate_size=256,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=128,
        linear_num_value_heads=32,
        linear_num_key_heads=16,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        layer_types=["linear_attention"] * (LAYERS - 1) + ["full_attention"],
    ),
    "Nemotron-H-8B's Mamba-2": lambda: NemotronHConfig(
        **COMMON,
        hidden_size=512,
        intermediate_size=256,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=128,
        layers_block_type=["linear_attention"] * (LAYERS - 1) + ["full_attention"],
        mamba_num_heads=128,
        mamba_head_dim=64,
        n_groups=8,
        ssm_state_size=128,
        conv_kernel=4,
    ),
    "Granite-4-H-Tiny's Mamba-2": lambda: GraniteMoeHybridConfig(
        **COMMON,
        hidden_size=1536,
        intermediate_size=256,
        shared_intermediate_size=256,
        num_hidden_layers=LAYERS,
        num_attention_heads=12,
        num_key_value_heads=4,
        num_local_experts=0,
        layer_types=["linear_attention"] * (LAYERS - 1) + ["full_attention"],
        mamba_n_heads=48,
        mamba_d_head=64,
        mamba_n_groups=1,
        mamba_d_state=128,
        mamba_d_conv=4,
        mamba_expand=2,
        position_embedding_type=None,
    ),
}


class Stopwatch:
    """Time spent in some calls."""

    def __init__(self) -> None:
        self.clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
        self.spent = 0.0

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The same call, with its time added."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            began = self.clock()
            try:
                return call(*args, **kwargs)
            finally:
                self.spent += self.clock() - began

        return timed


def make(config: Any) -> Adapter:
    """A model of random weights."""
    with tempfile.TemporaryDirectory() as directory:
        config.save_pretrained(directory)
        path = Path(directory) / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"architectures": None}))
        return Adapter.load(Path(directory), torch.float32, torch.device("cpu"), dummy=True)


def rest(target: Adapter, watch: Stopwatch, nodes: int, accepted: int, passes: int = 8) -> tuple[float, float]:
    """Milliseconds of a pass of 1 + nodes rows without matrices and attention, and with them."""
    tables = scattered_tables(1, 16)
    give_cache(target, 1)
    target.forward(make_rows([Segment(0, 0, [7] * 16)], tables))
    length, found = 16, []
    for _ in range(passes):
        rows = [Segment(0, length, [9])]
        if nodes:
            rows.append(Segment(0, length + 1, [11] * nodes, list(range(-1, nodes - 1))))
        packed = make_rows(rows, tables)
        if length + 2 * nodes + 2 > 62:
            break
        watch.spent, began = 0.0, watch.clock()
        target.forward(packed)
        whole = watch.clock() - began
        found.append((whole - watch.spent, whole))
        length += 1 + accepted
    return min(a for a, _ in found) * 1e3, min(b for _, b in found) * 1e3


def main() -> None:
    """Print a table."""
    print(f"threads: {torch.get_num_threads()}")
    for name, config in CONFIGS.items():
        target, watch = make(config()), Stopwatch()
        ops: Any = target._ops
        for call in ("linear", "attend", "store"):
            object.__setattr__(ops, call, watch.around(getattr(ops, call)))
        layers = len(target.state_shapes)
        cases = {"1 row": (0, 0), "5 rows": (4, 0), "5 rows, 2 run again": (4, 2), "5 rows, 4 run again": (4, 4)}
        best = dict.fromkeys(cases, (1e9, 1e9))
        for _ in range(3):
            for case, (nodes, accepted) in cases.items():
                found = rest(target, watch, nodes, accepted)
                best[case] = min(best[case][0], found[0]), min(best[case][1], found[1])
        one = best["1 row"][0]
        print(f"{name}: {layers} layers, a state of {line_bytes(target.state_shapes) / layers / 2**20:.2f} MiB a layer")
        for case, (ours, whole) in best.items():
            print(f"  {case:20} {ours / layers * 1e3:7.0f} us a layer, {ours / one:.2f}x  (whole pass {whole:.1f} ms)")


if __name__ == "__main__":
    main()
