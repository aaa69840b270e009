"""Recurrent layers of transformers' families on packed rows: their own weights, our convolution and recurrence.

A mixer replaces a layer's `forward`. It projects as the layer does, leaves everything that reads other rows to the
StatePass (state_pass.py), and finishes as the layer does. Gates are computed in float64 and rounded: vector code and
scalar code then give the same bits, so the other rows of the pass cannot change them.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from augury.kernels import Ops
from augury.model.errors import ModelError
from augury.model.state_pass import StatePass
from augury.model.states import StateShape


class Mixer(Protocol):
    """A recurrent layer."""

    shape: StateShape

    def __call__(self, run: StatePass, layer: int, hidden: Tensor) -> Tensor:
        """The layer's output for rows [R, hidden]."""
        ...


class GatedDelta:
    """The gated delta rule after a short convolution: Qwen3-Next, and Qwen3.5, which only lays its matrices out
    differently."""

    def __init__(self, module: Any, ops: Ops) -> None:
        self._module, self._ops = module, ops
        m = module
        kernel, self._weight, self._bias = _convolution(m.conv1d)
        self.shape = StateShape(m.conv_dim, kernel - 1, 2 * m.num_v_heads, m.num_v_heads, m.head_k_dim, m.head_v_dim)
        self._rates = -m.A_log.detach().double().exp(), m.dt_bias.detach().double()
        # An L2 norm, computed by the RMS norm; queries are scaled as well.
        size = m.head_k_dim
        self._unit = torch.full((size,), size**-0.5, device=m.A_log.device)
        self._scaled = self._unit * size**-0.5
        self._eps = 1e-6 / size

    def __call__(self, run: StatePass, layer: int, hidden: Tensor) -> Tensor:
        """See Mixer."""
        m = self._module
        x, z, b, a = self._project(hidden)
        speed, bias = self._rates
        decay = (speed * F.softplus(a.double() + bias)).exp()
        gates = torch.cat((decay, b.double().sigmoid()), 1).float()
        mixed, both = run.convolve(layer, x.float(), gates, self._weight, self._bias, activate=True)
        assert both is not None
        query, key, value = mixed.split([m.key_dim, m.key_dim, m.value_dim], 1)
        query, key = self._normed(query, self._scaled), self._normed(key, self._unit)
        decay, rate = both.split(m.num_v_heads, 1)
        out = run.scan(layer, query, key, value.view(len(value), -1, m.head_v_dim), decay, rate)
        out = m.norm(out.reshape(-1, m.head_v_dim).to(hidden.dtype), z.reshape(-1, m.head_v_dim))
        return m.out_proj(out.view(len(hidden), -1))  # type: ignore[no-any-return]

    def _project(self, hidden: Tensor) -> tuple[Tensor, ...]:
        """The convolution's input, the output gate, and the inputs of rate and decay."""
        m = self._module
        if hasattr(m, "in_proj_qkv"):
            return m.in_proj_qkv(hidden), m.in_proj_z(hidden), m.in_proj_b(hidden), m.in_proj_a(hidden)
        parts = m.fix_query_key_value_ordering(m.in_proj_qkvz(hidden)[None], m.in_proj_ba(hidden)[None])
        query, key, value, z, b, a = (part[0].flatten(1) for part in parts)
        return torch.cat((query, key, value), 1), z, b, a

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        size = len(weight)
        return self._ops.rms_norm(x.reshape(-1, size), weight, self._eps).view(len(x), -1, size)


class Mamba2:
    """Mamba-2 after a short convolution: Nemotron-H, Falcon-H1, Granite-4 and Bamba."""

    def __init__(self, module: Any, ops: Ops) -> None:
        self._module = m = module
        kernel, self._weight, self._bias = _convolution(m.conv1d)
        self.shape = StateShape(m.conv_dim, kernel - 1, m.num_heads, m.num_heads, m.ssm_state_size, m.head_dim)
        self._speed, self._dt_bias = -m.A_log.detach().double().exp(), m.dt_bias.detach().double()
        # transformers ignores the limits when it runs a single token; here they apply to every row.
        self._limits = m.time_step_limit

    def __call__(self, run: StatePass, layer: int, hidden: Tensor) -> Tensor:
        """See Mixer."""
        m = self._module
        gate, x, dt = self._project(hidden).split([m.intermediate_size, m.conv_dim, m.num_heads], 1)
        step = F.softplus(dt.double() + self._dt_bias).clamp(*self._limits)
        mixed, steps = run.convolve(layer, x.float(), step.float(), self._weight, self._bias, activate=True)
        assert steps is not None
        groups = m.n_groups * m.ssm_state_size
        value, key, query = mixed.split([m.intermediate_size, groups, groups], 1)
        value = value.reshape(len(value), m.num_heads, m.head_dim)
        decay = (steps.double() * self._speed).exp().float()
        query, key = (t.reshape(len(t), m.n_groups, m.ssm_state_size) for t in (query, key))
        out = run.scan(layer, query, key, value * steps[..., None], decay, None)
        out = (out + run.own(value) * m.D.detach().float()[:, None]).flatten(1)
        return m.out_proj(self._finish(out, gate).to(hidden.dtype))  # type: ignore[no-any-return]

    def _project(self, hidden: Tensor) -> Tensor:
        m = self._module
        if not hasattr(m, "mup_vector"):
            return m.in_proj(hidden)  # type: ignore[no-any-return]
        return m.in_proj(hidden * m.ssm_in_multiplier) * m.mup_vector.view(1, -1)  # type: ignore[no-any-return]

    def _finish(self, out: Tensor, gate: Tensor) -> Tensor:
        m = self._module
        if not getattr(m, "mamba_rms_norm", True):
            return out * F.silu(gate.float())
        return m.norm(out[None], gate[None]).reshape(out.shape)  # type: ignore[no-any-return]


class ShortConv:
    """LFM2's gated convolution, which has no other state."""

    def __init__(self, module: Any, ops: Ops) -> None:
        self._module = module
        kernel, self._weight, self._bias = _convolution(module.conv)
        self.shape = StateShape(module.conv.in_channels, kernel - 1)

    def __call__(self, run: StatePass, layer: int, hidden: Tensor) -> Tensor:
        """See Mixer."""
        before, after, x = self._module.in_proj(hidden).chunk(3, 1)
        out, _ = run.convolve(layer, (before * x).float(), None, self._weight, self._bias, activate=False)
        return self._module.out_proj(after * run.own(out).to(after.dtype))  # type: ignore[no-any-return]


# The mixer that runs a layer, by the name of the layer's class.
MIXERS: dict[str, type[GatedDelta] | type[Mamba2] | type[ShortConv]] = {
    "Qwen3NextGatedDeltaNet": GatedDelta,
    "Qwen3_5GatedDeltaNet": GatedDelta,
    "Qwen3_5MoeGatedDeltaNet": GatedDelta,
    "NemotronHMamba2Mixer": Mamba2,
    "FalconH1Mixer": Mamba2,
    "GraniteMoeHybridMambaLayer": Mamba2,
    "BambaMixer": Mamba2,
    "Lfm2ShortConv": ShortConv,
    "Lfm2MoeShortConv": ShortConv,
}
HYBRIDS = {
    "qwen3_next",
    "qwen3_5_text",
    "qwen3_5_moe_text",
    "nemotron_h",
    "falcon_h1",
    "granitemoehybrid",
    "bamba",
    "lfm2",
    "lfm2_moe",
}


def recurrent_layers(model: nn.Module, ops: Ops) -> list[tuple[Any, Mixer]]:
    """The recurrent layers of a model in their order, each with its mixer."""
    found = [m for m in model.modules() if type(m).__name__ in MIXERS]
    if any(getattr(m, "activation", "silu") not in ("silu", "swish") for m in found):
        raise ModelError("a recurrent layer has an activation other than silu")
    mixers: list[tuple[Any, Mixer]] = [(m, MIXERS[type(m).__name__](m, ops)) for m in found]
    if len({mixer.shape.taps for _, mixer in mixers}) > 1:
        raise ModelError("its convolutions have different sizes")
    if any(mixer.shape.taps == 0 for _, mixer in mixers):
        raise ModelError("its convolutions see one token only, and no published model's do")
    return mixers


def _convolution(conv: nn.Conv1d) -> tuple[int, Tensor, Tensor | None]:
    """Kernel size, weights [kernel, C] and bias of a depthwise convolution."""
    weight = conv.weight.detach()[:, 0].float().t().contiguous()
    return len(weight), weight, None if conv.bias is None else conv.bias.detach().float().contiguous()
