"""Training that goes on from a published drafter, instead of from random weights."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from augury.config.errors import ConfigError
from augury.train.trainee import Trainee


@torch.no_grad()
def warm_start(trainee: Trainee, directory: Path) -> None:
    """Give a fresh trainee the weights of a drafter of its kind; words that the drafter lacks begin as they would."""
    files = {name: file for file in sorted(directory.glob("*.safetensors")) for name in _names(file)}
    if not files:
        raise ConfigError(f"--init {directory}: there is no *.safetensors; name the directory of a drafter.")
    mine, theirs = trainee.words.cpu(), _words(files)
    for name, tensor in trainee.module.state_dict().items():
        published = trainee.published(name)
        if published not in files:
            if name in trainee.optional:
                continue
            raise ConfigError(f"--init {directory}: no {published}; it is not a drafter of kind {trainee.goal.kind}.")
        found = _read(files, published)
        if name in trainee.tables and theirs is not None:
            found = _by_word(found, theirs, mine, tensor if trainee.fresh_rows else None)
        if found.shape != tensor.shape:
            raise ConfigError(
                f"--init {directory}: {published} is {list(found.shape)}, this training makes {list(tensor.shape)}; "
                "give the --layers and --depth it was made with."
            )
        tensor.copy_(found)


def _names(file: Path) -> list[str]:
    with safe_open(file, framework="pt") as tensors:
        return list(tensors.keys())


def _read(files: dict[str, Path], name: str) -> Tensor:
    with safe_open(files[name], framework="pt") as tensors:
        found: Tensor = tensors.get_tensor(name)
    return found


def _words(files: dict[str, Path]) -> Tensor | None:
    """The target's tokens that the rows of the drafter's tables stand for; None: all of them."""
    if "d2t" in files:
        offsets = _read(files, "d2t")
        return offsets + torch.arange(len(offsets))
    return _read(files, "token_map") if "token_map" in files else None


def _by_word(found: Tensor, theirs: Tensor, mine: Tensor, fresh: Tensor | None) -> Tensor:
    """Their rows for the words that both know; others have fresh ones, or what their drafter takes any other word for:
    its row past the words, or the mean of all. Fresh numbers beside trained ones would win every guess."""
    place = torch.full((int(max(theirs.max(), mine.max())) + 1,), -1).index_put((theirs,), torch.arange(len(theirs)))
    known, rest = place[mine] >= 0, found[len(theirs)] if len(found) > len(theirs) else found.float().mean(0)
    if fresh is None:
        rows = rest.to(found.dtype).repeat(len(mine) + 1, 1)
    else:
        rows = fresh.cpu().to(found.dtype).clone()
    rows[: len(mine)][known] = found[place[mine][known]]
    if len(rows) > len(mine) and len(found) > len(theirs):
        rows[len(mine)] = rest
    return rows
