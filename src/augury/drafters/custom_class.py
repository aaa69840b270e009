"""`custom_class`: a drafter of the user's own, by import path. It may follow vLLM's interface or ours."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor

from augury.config.errors import ConfigError
from augury.config.speculative import SpeculativeConfig
from augury.drafters.base import Drafter, DrafterSetup
from augury.drafters.text import TextDrafter
from augury.verify.tree import Draft, chain_parents

OURS = ("needs", "branching", "on_host", "propose", "observe", "admit", "reset")  # what our interface has


class CustomDrafter(TextDrafter):
    """Wraps a class that follows vLLM's interface: lists of tokens in, one list of draft tokens per request out."""

    name = "custom_class"

    def __new__(cls, config: SpeculativeConfig, setup: DrafterSetup) -> Any:
        """Build a class that follows our own interface from (config, setup), unwrapped."""
        assert config.model is not None
        found = load_class(config.model)
        if all(hasattr(found, part) for part in OURS):
            if not issubclass(found, Drafter):  # it need not inherit from ours; what it leaves out, ours has
                found = type(found.__name__, (found, Drafter), {})
            return _built(config.model, found, config, setup)
        return super().__new__(cls)

    def __init__(self, config: SpeculativeConfig, setup: DrafterSetup) -> None:
        """Build the user's class, which gets the configuration vLLM would pass as far as we have it."""
        assert config.model is not None
        self.path, self.nodes, self.vocab = config.model, config.num_speculative_tokens, setup.target.vocab_size
        self.inner = _built(config.model, load_class(config.model), VllmLike(config, setup))
        if not callable(getattr(self.inner, "propose", None)):
            raise AttributeError(f"{self.path} has no method `propose`; docs/write-a-drafter.md shows one.")
        if callable(getattr(self.inner, "load_model", None)):
            self.inner.load_model()
        self._before = np.zeros(setup.slots, np.int64)

    def draft(self, slots: Tensor, lengths: Tensor, history: Tensor, budget: Tensor) -> Draft:
        """Call `propose` as vLLM does, and cut the drafts to their budgets."""
        seats, known, most = slots.tolist(), lengths.tolist(), budget.tolist()
        text = history[slots].cpu().numpy().astype(np.int32)
        fresh = [
            text[g, max(int(self._before[s]), 0) : n].tolist() if most[g] > 0 else []
            for g, (s, n) in enumerate(zip(seats, known, strict=True))
        ]
        guesses = self.inner.propose(fresh, np.array(known, np.int32), text, slot_mappings=None)
        self._before[seats] = known  # not if it fails: the same tokens are new when the pass is run again
        tokens = torch.zeros(len(seats), self.nodes, dtype=torch.int64)
        counts = torch.zeros(len(seats), dtype=torch.int64)
        for g, guess in enumerate(self._checked(guesses, len(seats))):
            kept = guess[: min(most[g], self.nodes)]
            tokens[g, : len(kept)], counts[g] = torch.tensor(kept, dtype=torch.int64), len(kept)
        device = slots.device
        return Draft(
            tokens.to(device), chain_parents(len(seats), self.nodes, device), counts.to(device), branching=False
        )

    def _checked(self, guesses: Any, groups: int) -> list[list[int]]:
        """One list of tokens per request; a number that is not a token ends its list there, as vLLM's -1 does."""
        if not isinstance(guesses, (list, tuple)) or len(guesses) != groups:
            raise ValueError(
                f"{self.path}.propose must return one list per request ({groups} of them), got {guesses!r}."
            )
        lists = []
        for guess in guesses:
            whole = [int(token) for token in guess]
            wrong = next((i for i, token in enumerate(whole) if not 0 <= token < self.vocab), len(whole))
            lists.append(whole[:wrong])
        return lists

    def admit(self, slot: int, prompt_len: int, cached: int, tenant: str, request: str) -> None:
        """What is new in a slot is counted from the end of its prompt."""
        self._before[slot] = prompt_len


class VllmLike:
    """What a class written for vLLM looks for in the VllmConfig it is given."""

    def __init__(self, config: SpeculativeConfig, setup: DrafterSetup) -> None:
        self.speculative_config = config
        self.model_config = self
        self.max_model_len = setup.max_model_len
        self.device = setup.target.device


def load_class(path: str) -> Any:
    """Import package.module.Class, with errors of vLLM's kinds."""
    module, _, name = path.rpartition(".")
    if not module:
        raise ConfigError(f"speculative_config.model={path!r} must be a dotted import path: 'package.module.Class'.")
    try:
        found = getattr(import_module(module), name, None)
    except ImportError as error:
        raise ImportError(f"speculative_config.model={path!r} cannot be imported: {error}.") from error
    if found is None:
        raise AttributeError(f"speculative_config.model={path!r}: {module} has no class {name!r}.")
    return found


def _built(path: str, found: Any, *arguments: Any) -> Any:
    try:
        return found(*arguments)
    except Exception as error:
        raise RuntimeError(f"{path} could not be built: {type(error).__name__}: {error}") from error
