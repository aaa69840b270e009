"""What tests of the Triton draw share: the torch reference with the interpreter's exp and log, and short searches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

import interpreter  # noqa: F401
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from torch import Tensor

from augury.kernels import draw_triton

ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")


def quick(examples: int) -> settings:
    """So many examples under the interpreter, more on a GPU."""
    return settings(
        max_examples=150 if ON_GPU else examples,
        deadline=None,
        derandomize=True,
        phases=(Phase.explicit, Phase.generate),  # shrinking takes minutes under the interpreter
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )


@pytest.fixture(autouse=True)
def reference(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The reference as the kernels compute, in every test of a file that imports this; numpy's warnings are no news."""
    if not ON_GPU:
        _same_functions(monkeypatch)
    with np.errstate(all="ignore"):
        yield


def _same_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Off a GPU the reference takes exp and log from numpy, as the interpreter does; and the searches are short."""
    for name, value in {"CANDIDATES": 4, "READS": 2, "SETTLE_BLOCK": 128}.items():
        monkeypatch.setattr(draw_triton, name, value)
    monkeypatch.setattr(torch.Tensor, "exp", _through(np.exp))
    monkeypatch.setattr(torch.Tensor, "log", _through(np.log))
    monkeypatch.setattr(torch, "log", _through(np.log))
    monkeypatch.setattr(torch, "log1p", _through(np.log1p))


def _through(function: Callable[[np.ndarray], np.ndarray]) -> Callable[[Tensor], Tensor]:
    return lambda t: torch.from_numpy(np.asarray(function(t.numpy())))


def moved(thing: Any) -> Any:
    """A dataclass of tensors on the device under test."""
    values = {f.name: getattr(thing, f.name) for f in fields(thing)}
    return replace(thing, **{n: v.to(DEVICE) for n, v in values.items() if isinstance(v, Tensor)})
