"""The attention of transformers' models: our function in place of theirs, over the paged cache.

The data of a forward pass is in a context variable, because transformers passes nothing of ours down to its layers. In
place of a mask the model carries the window that the mask would have had, because some families state it nowhere else.
For chunked attention the window is minus the chunk size.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from augury.kernels import Ops
from augury.model.errors import ModelError
from augury.model.mixers import Mixer
from augury.model.state_pass import StatePass
from augury.model.target import KVCache, LayerShape

ATTENTION = "augury"
TUNED = "augury_tuned"  # attribute of a layer whose queries we scale by position: its floor_scale and attn_scale


@dataclass(slots=True)
class ForwardContext:
    """One forward pass, as the attention function and the hooks see it."""

    ops: Ops
    view: Any
    cache: KVCache
    features: tuple[int, ...]
    states: StatePass | None = None  # the recurrent layers' side of the pass; None if there are none
    long: Tensor | None = None  # see Rows.long
    positions: Tensor | None = None  # int64 [R]
    chunk: int = 0  # tokens in a chunk of the model's chunked attention
    streams: dict[int, Tensor] = field(default_factory=dict)
    layer: int = 0

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, scale: float, window: int, softcap: float, sinks: Tensor | None
    ) -> Tensor:
        """Store keys and values of the next layer and attend; q, k, v are [R, heads, D]."""
        keys, values = self.cache.keys[self.layer], self.cache.values[self.layer]
        self.layer += 1
        self.ops.store(k.to(keys.dtype), v.to(values.dtype), self.view, keys, values)
        return self.ops.attend(q.to(keys.dtype), keys, values, self.view, scale, window, softcap, sinks).to(q.dtype)

    def mix(self, mixer: Mixer, number: int, hidden: Tensor) -> Tensor:
        """Run recurrent layer `number` on rows [R, hidden]."""
        assert self.states is not None
        return mixer(self.states, number, hidden)

    def keep(self, number: int, stream: Tensor) -> None:
        """Keep a residual stream if it was asked for."""
        if number in self.features:
            self.streams[number] = stream[0]


@dataclass(slots=True)
class Probe:
    """A dry run that records shapes."""

    shapes: list[LayerShape] = field(default_factory=list)
    long: Tensor | None = None
    positions: Tensor | None = None
    chunk: int = 0

    def check_mask(self, sees: Callable[..., Tensor], window: int) -> None:
        """Refuse a mask that is not causal, with or without a window or chunks: packed rows cannot express it."""
        edge = window or 1
        # Positions around the edges of windows and chunks; a table of all would be gigabytes for a chunk of 8,192.
        place = torch.cat([torch.arange(max(0, n * edge - 3), n * edge + 4) for n in range(4)]).unique()
        query, key = place[:, None], place[None, :]
        causal, zero = key <= query, torch.zeros_like(query)
        seen = sees(zero, zero, query, key).expand_as(causal)
        if torch.equal(seen, causal & (query - key < (window or int(place.max()) + 1))):
            return
        if not torch.equal(seen, causal & (query // edge == key // edge)) or self.chunk not in (0, window):
            raise ModelError("its attention mask is neither causal nor a sliding window nor chunks")
        self.chunk = window

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *_: Any) -> Tensor:
        """Record one layer's shapes."""
        self.shapes.append(LayerShape(k.shape[1], k.shape[2], v.shape[2]))
        return q.new_zeros(*q.shape[:2], v.shape[2])

    def mix(self, mixer: Mixer, number: int, hidden: Tensor) -> Tensor:
        """Return zeros: the shapes of recurrent layers are known already."""
        return torch.zeros_like(hidden)

    def keep(self, number: int, stream: Tensor) -> None:
        """Keep nothing."""


current: ContextVar[ForwardContext | Probe] = ContextVar("current pass")


@dataclass(slots=True)
class Mask:
    """What a model carries in place of a mask; slicing it changes nothing."""

    window: int

    def __getitem__(self, _: Any) -> Mask:
        return self


NO_WINDOW = Mask(0)  # the mask of sliding layers in a model whose window is switched off, and which has no such layers


def _mask(mask_function: Callable[..., Tensor], local_size: int | None = None, **_: Any) -> Mask:
    """Called by transformers once per forward pass and kind of layer, even for a kind that no layer has."""
    if local_size == 0:
        return NO_WINDOW
    run, size = current.get(), local_size or 0
    if isinstance(run, Probe):
        run.check_mask(mask_function, size)
    return Mask(-size if size == run.chunk else size)


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | Mask | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    is_causal: bool | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Called by transformers: query, key, value are [1, heads, R, D], the result is [1, R, heads, D]."""
    window = attention_mask.window if isinstance(attention_mask, Mask) else sliding_window or 0
    if isinstance(attention_mask, Tensor) or position_bias is not None or is_causal is False:
        raise ModelError(
            f"{type(module).__name__} brings its own mask or position bias, which packed rows cannot express."
        )
    if attention_mask is NO_WINDOW:
        raise ModelError(f"{type(module).__name__} has an attention window of 0 tokens.")
    q, k, v = (t[0].transpose(0, 1) for t in (query, key, value))
    if (tuned := getattr(module, TUNED, None)) is not None and current.get().positions is not None:
        q = _tuned(q, current.get().positions, *tuned)
    scale = q.shape[-1] ** -0.5 if scaling is None else float(scaling)
    sinks = None if s_aux is None else s_aux.detach().float()
    out = current.get().attend(q, k, v, scale, window, softcap or 0.0, sinks)
    return out[None], None


def tune_by_position(module: Any) -> None:
    """Scale a layer's queries by their own positions here: the layer itself would count the rows of a pass instead."""
    if getattr(module, "attn_temperature_tuning", False) and not getattr(module, "use_rope", True):
        module.attn_temperature_tuning = False
        setattr(module, TUNED, (float(module.floor_scale), float(module.attn_scale)))


def _tuned(q: Tensor, positions: Tensor | None, floor: float, scale: float) -> Tensor:
    assert positions is not None
    factor = torch.log1p(((positions.double() + 1) / floor).floor()) * scale + 1
    return (q * factor[:, None, None]).to(q.dtype)


def let_mix(module: Any, mixer: Mixer, number: int) -> None:
    """Let a mixer run recurrent layer `number`: packed rows are not one sequence, and the state is ours."""

    def forward(hidden_states: Tensor, *_: Any, **__: Any) -> Tensor:
        return current.get().mix(mixer, number, hidden_states[0])[None]

    module.forward = forward


AttentionInterface.register(ATTENTION, _attention)
AttentionMaskInterface.register(ATTENTION, _mask)
