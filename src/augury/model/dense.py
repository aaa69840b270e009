"""Llama, Mistral, Qwen2, Qwen3, mixtures of their kind (Mixtral, Qwen3-MoE) and models of their shape (SmolLM2): one
lean decoder over packed rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from augury.kernels import Ops, choose
from augury.kernels.faces import face
from augury.kernels.rows import Rows
from augury.model.checkpoint import Checkpoint, layers_config
from augury.model.dense_plan import DensePlan, TensorReader
from augury.model.dummy import DummyCheckpoint
from augury.model.layers import AdapterContext, AnyLinear, Layer, Linear, PackedLinear
from augury.model.mixture_plan import MIXTURES
from augury.model.packed import PackedFile
from augury.model.quantized_file import QuantizedFile
from augury.model.rope import context_length, head_dim, rotary_tables
from augury.model.schemes import read_scheme
from augury.model.split import Split, SplitWords
from augury.model.states import StateShape
from augury.model.target import NORMED, KVCache, LayerShape, TargetOutput

MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3", *MIXTURES)


class Dense:
    """Our own decoder, a Target."""

    capturable = True

    def __init__(
        self,
        config: Any,
        ops: Ops,
        embedding: Tensor | PackedLinear | SplitWords,
        layers: list[Layer],
        norm: Tensor,
        head: AnyLinear | SplitWords,
        split: Split | None = None,
    ) -> None:
        self.vocab_size: int = config.vocab_size
        self.hidden_size: int = config.hidden_size
        self.num_layers: int = config.num_hidden_layers
        self.max_position = context_length(config)
        self.device = norm.device
        # The CPU kernels compute in float32 whatever the weights are stored in.
        self.cache_dtype = torch.float32 if self.device.type == "cpu" else norm.dtype
        self.split = split
        self.draft_split: Split | None = None
        dim = head_dim(config)
        shape = DensePlan(config).attention.shape(split) if split else LayerShape(config.num_key_value_heads, dim, dim)
        self.layer_shapes = [shape] * self.num_layers
        self.state_shapes: list[StateShape] = []
        self.switch_length = 0
        self.cache = KVCache()
        self.any_size = face(self.device) == "numba"
        self._ops = ops
        self._eps: float = config.rms_norm_eps
        self._embedding = embedding
        self.layers = layers
        self.prepare_layers()
        self._first_norm = layers[0].attention_norm
        self._norms = [*(layer.attention_norm for layer in layers[1:]), norm]  # the norm that follows each layer
        self._head = head
        self.current: AdapterContext | None = None  # what LoRA adapters need to know about a pass
        self.adapters: Any = None  # model/lora.py's Adapters, which wrap the projections
        self.projections = DensePlan(config).projections()

    def prepare_layers(self) -> None:
        """Bring the layers into the form in which they are run; call again after a projection was replaced."""
        self.run_layers = self._ops.fused(self.layers)

    @property
    def ops(self) -> Ops:
        """The kernels that run its weights."""
        return self._ops

    def forward(self, rows: Rows, features: tuple[int, ...] = ()) -> TargetOutput:
        """See Target.forward."""
        ops = self._ops
        view = ops.view(rows)
        if self.current is not None:
            self.current.adapters = rows.adapters
        residual = self.embed(rows.tokens)
        embedded, kept = residual, sorted({n for n in features if n > 0})
        x = ops.rms_norm(residual, self._first_norm, self._eps)
        stores = self.cache.keys, self.cache.values
        x, _, found = self.run_layers(x, residual, view, stores, self._norms, kept)
        streams = {0: embedded, **dict(zip(kept, found, strict=True)), NORMED: x}
        wanted = ops.pick(x, rows.wanted)
        own = rows.own_words and isinstance(self._head, SplitWords)
        logits = self._head.own(wanted) if own else self.project(wanted)  # type: ignore[union-attr]
        return TargetOutput(logits, tuple(streams[i] for i in features))

    def embed(self, tokens: Tensor) -> Tensor:
        """See Target.embed."""
        if isinstance(self._embedding, SplitWords):
            return self._embedding.embed(tokens, self.cache_dtype)
        if isinstance(self._embedding, PackedLinear):
            return self._embedding.weight.lines(tokens).to(self.cache_dtype)
        return F.embedding(tokens, self._embedding).to(self.cache_dtype)

    @property
    def packed_words(self) -> Any:
        """The embeddings as compiled code can read them, or None: tiles of their own kind, in float32 once unpacked."""
        from augury.kernels.tiles import Tiled

        weight = getattr(self._embedding, "weight", None)
        return weight if isinstance(weight, Tiled) and self.cache_dtype == torch.float32 else None

    def project(self, hidden: Tensor) -> Tensor:
        """See Target.project."""
        if not hidden.shape[0]:  # of a pass that wants no logits
            return hidden.new_empty(0, self.vocab_size)
        return self._head.whole(hidden) if isinstance(self._head, SplitWords) else self._head(hidden)

    @property
    def words(self) -> tuple[int, int] | None:
        """See Target.words."""
        return self._head.span if isinstance(self._head, SplitWords) else None

    @classmethod
    def load(
        cls,
        directory: Path,
        dtype: torch.dtype,
        device: torch.device,
        max_model_len: int | None = None,
        packed: bool = False,
        dummy: bool = False,
        exact: bool = False,
        fast: bool = False,
        split: Split | None = None,
        rounds: str = "",
    ) -> Dense:
        """Read a checkpoint directory; `packed` takes matrices in their file's precision, `dummy` makes random ones.

        `exact`: see kernels.choose; `fast`: see Ops.arrange; `split`: read this rank's part; `rounds`: the kind that
        layers' matrices are rounded to, empty for none.
        """
        config, ops = layers_config(directory), choose(device, exact)
        plan, length = DensePlan(config), max_model_len or context_length(config)
        source: Checkpoint | DummyCheckpoint = DummyCheckpoint(dtype, device) if dummy else Checkpoint(directory)
        with source as checkpoint:
            if plan.mixtures and isinstance(checkpoint, Checkpoint):
                plan.mixtures.look(checkpoint.__contains__, config.num_hidden_layers)
            quantized = _quantized_file(checkpoint, config, device)
            (quantized or checkpoint).require(plan.shapes(), plan.spare)
            stored = quantized or (PackedFile(directory) if packed else None)
            read = TensorReader(checkpoint, stored, ops, dtype, device, fast, rounds)
            rotary = tuple(t.to(device) for t in rotary_tables(config, length))
            layers = [
                plan.layer(i, read, rotary, split)  # type: ignore[arg-type]
                for i in range(config.num_hidden_layers)
            ]
            words = read.words("model.embed_tokens", config.vocab_size, split)
            head = words if config.tie_word_embeddings else read.words("lm_head", config.vocab_size, split)
            embedding = words.weight if isinstance(words, Linear) else words
            return cls(config, ops, embedding, layers, read.vector("model.norm.weight"), head, split)


def _quantized_file(
    checkpoint: Checkpoint | DummyCheckpoint, config: Any, device: torch.device
) -> QuantizedFile | None:
    """The reader of a checkpoint's quantised matrices, if it has any; dummy weights are never quantised."""
    scheme = read_scheme(getattr(config, "quantization_config", None))
    return QuantizedFile(checkpoint, scheme, device) if scheme and isinstance(checkpoint, Checkpoint) else None
