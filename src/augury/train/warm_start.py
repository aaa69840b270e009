"""Training that starts from a published drafter, instead of from random weights."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from augury.config.errors import ConfigError
from augury.config.fingerprint import fingerprint, name_of
from augury.methods.facts import MARK
from augury.train.trainee import Trainee


class Origin:
    """A published drafter of the same target, whose weights a new one begins with."""

    def __init__(self, directory: Path, target: Path) -> None:
        self.directory = directory
        self._files = {name: file for file in sorted(directory.glob("*.safetensors")) for name in self._names(file)}
        if not self._files:
            raise ConfigError(f"--init {directory}: there is no *.safetensors; name the directory of a drafter.")
        self._check_target(target)
        self.words = self._words()  # the target's tokens that rows of its tables stand for; None: all of them

    def digest(self) -> str:
        """A hash of its weight files, to tell it from other drafters."""
        whole = hashlib.sha256()
        for file in sorted(set(self._files.values())):
            whole.update(file.read_bytes())
        return whole.hexdigest()[:16]

    @torch.no_grad()
    def give(self, trainee: Trainee) -> None:
        """Copy its weights to a fresh trainee of its kind; rows of words that it lacks are as `_by_word` says."""
        mine = trainee.words.cpu()
        for name, tensor in trainee.module.state_dict().items():
            published = trainee.published(name)
            if published not in self._files:
                if name in trainee.optional:
                    continue
                raise self._strange(f"no {published}; it is not a drafter of kind {trainee.goal.kind}")
            found = self._read(published)
            if name in trainee.tables and self.words is not None:
                found = _by_word(found, self.words, mine, tensor if trainee.fresh_rows else None)
            if not bool(found.isfinite().all()):
                raise self._strange(f"{published} has NaN or infinite values")
            if found.shape != tensor.shape:
                raise self._strange(
                    f"{published} is {list(found.shape)}, this training makes {list(tensor.shape)}; "
                    "give the --layers and --depth it was made with"
                )
            tensor.copy_(found)

    def _check_target(self, target: Path) -> None:
        try:
            meant = json.loads((self.directory / "config.json").read_text()).get(MARK) or {}
            mark = meant.get("fingerprint")
        except (OSError, ValueError, AttributeError) as error:
            raise self._strange(f"its config.json cannot be read ({error})") from None
        if mark not in (None, fingerprint(target)):
            raise self._strange(f"it was trained for {meant.get('name')}, and --target is {name_of(target)}")

    def _words(self) -> Tensor | None:
        if "d2t" in self._files:
            offsets = self._read("d2t")
            return offsets + torch.arange(len(offsets))
        return self._read("token_map") if "token_map" in self._files else None

    def _names(self, file: Path) -> list[str]:
        try:
            with safe_open(file, framework="pt") as tensors:
                return list(tensors.keys())
        except (OSError, SafetensorError) as error:
            raise self._strange(f"{file.name} cannot be read ({error})") from None

    def _read(self, name: str) -> Tensor:
        with safe_open(self._files[name], framework="pt") as tensors:
            found: Tensor = tensors.get_tensor(name)
        return found

    def _strange(self, why: str) -> ConfigError:
        return ConfigError(f"--init {self.directory}: {why}.")


def _by_word(found: Tensor, theirs: Tensor, mine: Tensor, fresh: Tensor | None) -> Tensor:
    """Their rows for the words that both know. Other words get the `fresh` rows, or if there are none the row that
    their drafter has for all other words (past its own), or the mean of all rows: random rows next to trained ones
    would win every guess."""
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
