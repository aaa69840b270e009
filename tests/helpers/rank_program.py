"""One rank of a model without an engine: `python rank_program.py PORT RANK SIZE MODEL` prints errors of its logits.

Both ways to lead back to the stream are run, and rank 0 tells how far each is from a single rank's logits.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from rows import Segment, make_rows

from augury.model.dense import Dense
from augury.model.split import Split
from augury.model.target import KVCache
from augury.parallel.ranks import LOOPBACK, Ranks


def logits(model: Dense, tokens: list[int]) -> torch.Tensor:
    """Of a whole text."""
    model.cache = KVCache.allocate(model.layer_shapes, 80, torch.float32, torch.device("cpu"))
    rows = make_rows([Segment(0, 0, tokens)], torch.arange(1, 20)[None], 4)
    rows.wanted = torch.arange(len(tokens))
    return model.forward(rows).logits


def main() -> None:
    port, rank, size = map(int, sys.argv[1:4])
    cpu, errors = torch.device("cpu"), {}
    ranks = Ranks(dist.TCPStore(LOOPBACK, port, size, rank == 0, wait_for_workers=False), rank, size, cpu)
    for family in sys.argv[4:]:
        whole = logits(Dense.load(Path(family), torch.float32, cpu), list(range(3, 40, 2)))
        with ranks.together():
            parts = [
                logits(Dense.load(Path(family), torch.float32, cpu, split=Split(ranks, gathers)), list(range(3, 40, 2)))
                for gathers in (True, False)
            ]
        errors[Path(family).name] = [float((part - whole).abs().max()) for part in parts]
    if rank == 0:
        print(json.dumps(errors))


if __name__ == "__main__":
    main()
