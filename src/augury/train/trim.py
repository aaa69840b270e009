"""Trims a head's vocabulary: rows of its tables are dropped, nothing is trained again.

Most of the cost of a small drafter's guess is its output matrix, and words that the target seldom says cost more than
they bring. A head that guesses by the target's matrix keeps a list of words, and uses the target's lines for them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from augury.config.errors import ConfigError
from augury.model.heads.dflash_config import BORROWED, inner_part, relative
from augury.train.corpus import Corpus
from augury.train.export import read_checkpoint, write_checkpoint

OWN, KNOWN = "d2t", "t2d"
TABLES = re.compile(r"(lm_head|head\.\d+|emb\.\d+)\.weight")  # a row for every word, of EAGLE-3 and MLP speculators


def said_most(corpus: Corpus, count: int, among: Tensor, vocabulary: int) -> Tensor:
    """Indices in `among`, rising, of the `count` tokens that are most frequent in the answers."""
    often = torch.bincount(answers_of(corpus), minlength=vocabulary)[among]
    return often.argsort(descending=True, stable=True)[:count].sort().values


def answers_of(corpus: Corpus) -> Tensor:
    """All tokens of all answers."""
    return torch.cat([corpus.text(i)[int(corpus.starts[i]) :] for i in range(len(corpus))])


def trim(drafter: Path, corpus: Corpus, count: int, out: Path) -> dict[str, Any]:
    """Write the drafter with the `count` most frequent of its words; returns a summary."""
    config, tensors = read_checkpoint(drafter)
    borrows = OWN not in tensors and can_borrow(config) and "lm_head.weight" not in tensors
    if OWN not in tensors and not borrows:
        raise ConfigError(f"{drafter} has no words of its own ({OWN}); train it with --vocabulary.")
    if "vocab_size" not in config:
        raise ConfigError(f"{drafter} is in the speculators format; trim the drafter in best/, then export it again.")
    words = torch.arange(config["vocab_size"]) if borrows else torch.arange(len(tensors[OWN])) + tensors[OWN]
    if len(words) and not 0 <= int(words.min()) <= int(words.max()) < config["vocab_size"]:
        raise ConfigError(f"{drafter}: its {OWN} points outside the target's {config['vocab_size']} tokens.")
    if count >= len(words):
        raise ConfigError(f"--words {count}: {drafter} has {len(words)}; write fewer.")
    kept = said_most(corpus, count, words, config["vocab_size"])
    known = torch.zeros(config["vocab_size"], dtype=torch.bool)
    known[words[kept]] = True
    tensors |= {name: _rows(table, kept, len(words)) for name, table in tensors.items() if TABLES.fullmatch(name)}
    tensors |= {OWN: words[kept] - torch.arange(count)} | ({KNOWN: known} if KNOWN in tensors else {})
    write_checkpoint(out, tensors, config | {"draft_vocab_size": count} | ({BORROWED: True} if borrows else {}))
    covered = float(known[answers_of(corpus)].float().mean())
    return {"drafter": str(out), "words": count, "before": len(words), "covered": round(covered, 4)}


def can_borrow(config: dict[str, Any]) -> bool:
    """Whether a head of this kind may guess by some lines of the target's output matrix."""
    return bool(inner_part(config)) and relative(config) is None


def _rows(table: Tensor, kept: Tensor, words: int) -> Tensor:
    """The rows of the words that are kept; a row past the words stands for all others, and is kept too."""
    return torch.cat([table[kept], table[words:]])
