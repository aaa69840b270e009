"""What a step costs on a GPU that is not here: bytes over bandwidth, arithmetic over rate, and what engines add.

Matrices and attention run one after the other, each as long as the slower of its memory and its arithmetic takes. The
constants are few and hold for every model and device; they were read off one H200 (vLLM 0.26, 8B in bf16, CUDA graphs)
and are the largest uncertainty in any figure made from them, which is why every ratio carries SPREAD.
"""

from __future__ import annotations

from dataclasses import dataclass

from augury.methods.registry import METHODS
from augury.tools.advise.drafters import DraftingCost
from augury.tools.advise.gpus import Gpu
from augury.tools.advise.shape import ModelShape

BANDWIDTH = 0.80  # share of the published bandwidth that matrices reach: 3.8 to 3.9 of 4.8 TB/s
ARITHMETIC = 0.60  # share of the published rate, for the sizes that decoding and prefill have
STEP_MS = 0.40  # scheduling and sampling that a step waits for, whatever the model
LAYER_MS = 0.02  # norms, rotary, cache writes: kernels of a layer too small to count bytes for
REQUEST_MS = 0.010  # bookkeeping and logits of one more request
DRAFT_PASS_MS = 0.22  # a drafter's pass besides its layers: inputs, arg max, the next launch
DRAFT_LAYER_MS = 0.09  # a drafter's layer; drafters run in pieces, not as one graph
HOST_MS = 0.50  # a step that has to wait for the host, since its drafts come from there
HOST_REQUEST_MS = 0.02
CAPTURED_ROWS = 512  # vLLM's largest captured graph unless told otherwise
UNCAPTURED_LAYER_MS = 0.60  # a layer of a larger step: 0.5 and 0.8 were seen, at 768 and 640 rows
REDUCE_MS = 0.012  # starting an all-reduce; there are two a layer
USABLE = 0.9  # of the memory, as vLLM takes by default
READ_OFF = "H200"
SPREAD, SPREAD_ELSEWHERE = 0.08, 0.15  # standard deviation of the log of a ratio of two steps: on READ_OFF, elsewhere
SPREAD_FAR = 0.20  # experts, several devices or quantised weights: none of those was measured
LEANS = 0.14  # of 15 measured speed-ups most were predicted too high, one by this much (its logarithm)


@dataclass(frozen=True, slots=True)
class Roofline:
    """A target on a number of GPUs."""

    target: ModelShape
    gpu: Gpu
    parallel: int = 1  # tensor-parallel size
    cache_value_bytes: float = 2.0
    captured_rows: int = CAPTURED_ROWS

    @property
    def name(self) -> str:
        """What the figures come from."""
        return f"roofline of {self.parallel} x {self.gpu.name}" if self.parallel > 1 else f"roofline of {self.gpu.name}"

    @property
    def free_bytes(self) -> float:
        """Memory left for caches and drafters, all devices together."""
        return max(0.0, self._usable - self.target.stored_bytes)

    @property
    def _usable(self) -> float:
        return USABLE * 1e9 * self.gpu.memory_gb * self.parallel

    @property
    def leans(self) -> float:
        """LEANS, since measured speed-ups lie below the prediction more often than above it."""
        return LEANS

    @property
    def cannot(self) -> str | None:
        """Why the weights do not fit, and what to do about it; None if they do."""
        needed = self.target.stored_bytes
        if needed < self._usable:
            return None
        devices = next((n for n in (2, 4, 8, 16, 32) if needed < USABLE * 1e9 * self.gpu.memory_gb * n), None)
        wide = f"--tp {devices} or more" if devices else "a larger --tp over several nodes"
        return (
            f"cannot: needs {needed / 1e9:.1f} GB for its weights, {self.parallel} x {self.gpu.name} has "
            f"{self._usable / 1e9:.1f} GB to use ({USABLE:.0%} of {self.gpu.memory_gb * self.parallel:g}); use {wide}, "
            "or quantise"
        )

    def fits(self, requests: int, context: float, beside_bytes: float) -> bool:
        """Whether the caches fit; KV heads cannot be split, so with more devices than KV heads they are replicated."""
        copies = self.parallel / min(self.parallel, self.target.kv_heads)
        cache = requests * self.target.cache_bytes(context, self.cache_value_bytes) * copies
        return cache + beside_bytes <= self.free_bytes

    def step_ms(self, requests: int, rows_per_request: float, context: float) -> float:
        """One forward pass of the target with verification."""
        rows = requests * rows_per_request
        busy = self._pass_ms(self.target, requests, rows, context, self.parallel)
        ms = busy + STEP_MS + LAYER_MS * self.target.layers + REQUEST_MS * requests + self._reduce_ms(rows)
        if rows > self.captured_rows:
            ms += UNCAPTURED_LAYER_MS * self.target.layers
        return ms

    def draft_ms(self, drafting: DraftingCost, requests: int, tokens: int, context: float) -> float:
        """One round of drafting; a drafter is assumed to run on one device, as heads do, unless it is a whole model."""
        if tokens <= 0:
            return 0.0
        wait = HOST_MS + HOST_REQUEST_MS * requests if drafting.on_host else 0.0
        shape = drafting.shape
        if shape is None:
            return wait
        shared = self.parallel if METHODS[drafting.method].sharded else 1
        rows = requests * (tokens if drafting.parallel else 1)
        once = self._pass_ms(shape, requests, rows, context, shared) + DRAFT_PASS_MS + DRAFT_LAYER_MS * shape.layers
        return wait + drafting.passes(tokens) * once

    def read_ms(self, tokens: float) -> float:
        """Prefill of this many prompt tokens: arithmetic alone, since prefill chunks saturate the device."""
        return 1e3 * tokens * 2 * self.target.active / (self._rate(self.target) * self.parallel)

    def spread(self, requests: int, rows_per_request: float, context: float) -> float:
        """Larger the further from what was measured; 0 where nothing is drafted."""
        if rows_per_request <= 1:
            return 0.0
        if self.parallel > 1 or self.target.experts or self.target.weight_bytes < 2:
            return SPREAD_FAR
        return SPREAD if self.gpu.name == READ_OFF else SPREAD_ELSEWHERE

    def _pass_ms(self, shape: ModelShape, requests: int, rows: float, context: float, shared: int) -> float:
        band = self.gpu.bandwidth_gbs * 1e9 * BANDWIDTH
        rate = self._rate(shape)
        matrices = max(shape.read_bytes(rows) / band, 2 * rows * shape.active / rate) / shared
        # KV heads cannot be split: with more devices than KV heads they are replicated.
        cached = requests * shape.cache_bytes(context, self.cache_value_bytes) / band / min(shared, shape.kv_heads)
        attention = max(cached, 4 * rows * context * shape.attention_width * shape.layers / rate / shared)
        return 1e3 * (matrices + attention)

    def _rate(self, shape: ModelShape) -> float:
        peak = self.gpu.fp8_tflops if shape.fp8 and self.gpu.fp8_tflops else self.gpu.bf16_tflops
        return peak * 1e12 * ARITHMETIC

    def _reduce_ms(self, rows: float) -> float:
        if self.parallel == 1:
            return 0.0
        sent = rows * self.target.hidden * 2 * 2 * (self.parallel - 1) / self.parallel
        return 2 * self.target.layers * (REDUCE_MS + 1e3 * sent / (self.gpu.link_gbs * 1e9))
