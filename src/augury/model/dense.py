"""Llama, Mistral, Qwen2, Qwen3 and models of their shape (SmolLM2): one lean decoder over packed rows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from augury.kernels import Ops, choose
from augury.kernels.faces import face
from augury.model.checkpoint import Checkpoint, read_config
from augury.model.dummy import DummyCheckpoint
from augury.model.layers import AnyLinear, Attention, GatedMLP, Layer, Linear, PackedLinear, Pass
from augury.model.packed import PackedFile
from augury.model.rope import context_length, head_dim, rotary_tables
from augury.model.states import StateShape
from augury.model.target import KVCache, LayerShape, Rows, Scores

MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")


class Dense:
    """A Target."""

    capturable = True

    def __init__(
        self,
        config: Any,
        ops: Ops,
        embedding: Tensor | PackedLinear,
        layers: list[Layer],
        norm: Tensor,
        head: AnyLinear,
    ) -> None:
        self.vocab_size: int = config.vocab_size
        self.hidden_size: int = config.hidden_size
        self.num_layers: int = config.num_hidden_layers
        self.max_position = context_length(config)
        self.device = norm.device
        # The CPU kernels compute in float32 whatever the weights are stored in.
        self.cache_dtype = torch.float32 if self.device.type == "cpu" else norm.dtype
        dim = head_dim(config)
        self.layer_shapes = [LayerShape(config.num_key_value_heads, dim, dim)] * self.num_layers
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
        self.current: Pass | None = None  # what LoRA adapters are told of a pass, where there may be any
        self.adapters: Any = None  # model/lora.py's Adapters, which lie around the projections
        self.projections = _Plan(config).projections()

    def prepare_layers(self) -> None:
        """Bring the layers into the form in which they are run; once more after a projection was exchanged."""
        self._runs = [self._ops.fused(layer) for layer in self.layers]

    @property
    def ops(self) -> Ops:
        """The face that runs its weights."""
        return self._ops

    @torch.no_grad()
    def forward(self, rows: Rows, features: tuple[int, ...] = ()) -> Scores:
        """See Target.forward."""
        ops = self._ops
        view = ops.view(rows)
        if self.current is not None:
            self.current.adapters = rows.adapters
        residual = self.embed(rows.tokens)
        streams = [residual]
        x = ops.rms_norm(residual, self._first_norm, self._eps)
        for i, run in enumerate(self._runs):
            x, residual = run(x, residual, view, self.cache.keys[i], self.cache.values[i], self._norms[i])
            streams.append(residual)
        streams.append(x)  # NORMED
        return Scores(self.project(x[rows.wanted]), tuple(streams[i] for i in features))

    def embed(self, tokens: Tensor) -> Tensor:
        """See Target.embed."""
        if isinstance(self._embedding, PackedLinear):
            return self._embedding.weight.lines(tokens)
        return F.embedding(tokens, self._embedding).to(self.cache_dtype)

    def project(self, hidden: Tensor) -> Tensor:
        """See Target.project."""
        return self._head(hidden)

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
    ) -> Dense:
        """Read a checkpoint directory; `packed` takes matrices in their file's precision, `dummy` makes random ones.

        `exact`: see kernels.choose; `fast`: see Ops.arrange.
        """
        config, ops = read_config(directory), choose(device, exact)
        plan, length = _Plan(config), max_model_len or context_length(config)
        source: Checkpoint | DummyCheckpoint = DummyCheckpoint(dtype, device) if dummy else Checkpoint(directory)
        with source as checkpoint:
            checkpoint.require(plan.shapes(), plan.spare)
            read = _Reader(checkpoint, PackedFile(directory) if packed else None, ops, dtype, device, fast)
            rotary = tuple(t.to(device) for t in rotary_tables(config, length))
            layers = [plan.layer(i, read, rotary) for i in range(config.num_hidden_layers)]  # type: ignore[arg-type]
            words = read.linear(["model.embed_tokens"], bias=False)
            head = words if config.tie_word_embeddings else read.linear(["lm_head"], bias=False)
            embedding = words.weight if isinstance(words, Linear) else words
            return cls(config, ops, embedding, layers, read.vector("model.norm.weight"), head)


class _Reader:
    """Tensors of a checkpoint, in the types the kernels want."""

    def __init__(
        self,
        checkpoint: Checkpoint | DummyCheckpoint,
        packed: PackedFile | None,
        ops: Ops,
        dtype: torch.dtype,
        device: torch.device,
        fast: bool,
    ) -> None:
        self._fast = fast
        self._checkpoint, self._packed, self._ops, self._dtype, self._device = checkpoint, packed, ops, dtype, device
        self._vector_dtype = torch.float32 if device.type == "cpu" else dtype

    def matrix(self, *names: str) -> Tensor:
        """One matrix, or several stacked."""
        return self._stack(names, self._dtype)

    def vector(self, *names: str) -> Tensor:
        """A norm or bias, or several in a row; float32 on a CPU, where they cost nothing."""
        return self._stack(names, self._vector_dtype)

    def linear(self, names: list[str], bias: bool) -> Linear | PackedLinear:
        """One projection, or several fused; packed if all of them are."""
        added = self.vector(*(f"{name}.bias" for name in names)) if bias else None
        weights = tuple(f"{name}.weight" for name in names)
        packed = self._packed.matrix(weights) if self._packed else None
        if packed is not None:
            return PackedLinear(self._ops, self._ops.arrange(packed, self._fast), added)
        return Linear(self._ops, self.matrix(*weights), added)

    @property
    def ops(self) -> Ops:
        """The face that will run these weights."""
        return self._ops

    def _stack(self, names: tuple[str, ...], dtype: torch.dtype) -> Tensor:
        parts = [self._checkpoint.tensor(name).to(self._device, dtype) for name in names]
        return parts[0].contiguous() if len(parts) == 1 else torch.cat(parts)


class _Plan:
    """What a configuration says of names, shapes, biases and windows."""

    def __init__(self, config: Any) -> None:
        self.config = config
        self.dim = head_dim(config)
        self.heads: int = config.num_attention_heads
        self.kv_heads: int = config.num_key_value_heads
        biased = bool(getattr(config, "attention_bias", False))
        qwen2 = config.model_type == "qwen2"  # biases on q, k, v whatever the config says, never on o
        self.qkv_bias, self.out_bias = qwen2 or biased, biased and not qwen2
        self.mlp_bias = bool(getattr(config, "mlp_bias", False))
        self.head_norms = config.model_type == "qwen3"

    def window(self, i: int) -> int:
        """The sliding window of layer i, 0 for none."""
        if self.config.model_type == "mistral":
            return self.config.sliding_window or 0
        kinds = getattr(self.config, "layer_types", None)
        if self.config.model_type == "llama" or not kinds or kinds[i] != "sliding_attention":
            return 0
        return self.config.sliding_window or 0

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor the checkpoint must hold."""
        hidden, vocabulary = self.config.hidden_size, self.config.vocab_size
        shapes: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (vocabulary, hidden),
            "model.norm.weight": (hidden,),
        }
        if not self.config.tie_word_embeddings:
            shapes["lm_head.weight"] = (vocabulary, hidden)
        for i in range(self.config.num_hidden_layers):
            shapes.update({f"model.layers.{i}.{name}": shape for name, shape in self._layer_shapes().items()})
        return shapes

    def spare(self, name: str) -> bool:
        """Tensors that may be stored but are not used: a tied head, and multi-token-prediction layers (MTP)."""
        layer = re.match(r"model\.layers\.(\d+)\.", name)
        ahead = name.startswith(("mtp.", "mtp_layers.", "model.mtp_layers."))
        further = getattr(self.config, "num_nextn_predict_layers", 0) or 0
        beyond = layer is not None and 0 <= int(layer[1]) - self.config.num_hidden_layers < further
        return ahead or beyond or (name == "lm_head.weight" and self.config.tie_word_embeddings)

    def projections(self) -> dict[str, tuple[int, int]]:
        """The matrices of a layer, (out, in) each."""
        hidden, inner = self.config.hidden_size, self.config.intermediate_size
        q, kv = self.heads * self.dim, self.kv_heads * self.dim
        return {
            "q_proj": (q, hidden),
            "k_proj": (kv, hidden),
            "v_proj": (kv, hidden),
            "o_proj": (hidden, q),
            "gate_proj": (inner, hidden),
            "up_proj": (inner, hidden),
            "down_proj": (hidden, inner),
        }

    def _layer_shapes(self) -> dict[str, tuple[int, ...]]:
        hidden = self.config.hidden_size
        shapes: dict[str, tuple[int, ...]] = {
            "input_layernorm.weight": (hidden,),
            "post_attention_layernorm.weight": (hidden,),
        }
        biased = dict.fromkeys(("gate_proj", "up_proj", "down_proj"), self.mlp_bias) | {"o_proj": self.out_bias}
        for name, shape in self.projections().items():
            parent = "self_attn" if name[0] in "qkvo" else "mlp"
            shapes[f"{parent}.{name}.weight"] = shape
            if biased.get(name, self.qkv_bias):
                shapes[f"{parent}.{name}.bias"] = shape[:1]
        if self.head_norms:
            shapes |= {"self_attn.q_norm.weight": (self.dim,), "self_attn.k_norm.weight": (self.dim,)}
        return shapes

    def layer(self, i: int, read: _Reader, rotary: tuple[Tensor, Tensor]) -> Layer:
        """Read one layer."""
        at, mlp = f"model.layers.{i}.self_attn", f"model.layers.{i}.mlp"
        norms = [read.vector(f"{at}.{x}_norm.weight") if self.head_norms else None for x in "qk"]
        attention = Attention(
            read.ops,
            qkv=read.linear([f"{at}.{x}_proj" for x in "qkv"], self.qkv_bias),
            out=read.linear([f"{at}.o_proj"], self.out_bias),
            q_norm=norms[0],
            k_norm=norms[1],
            rotary=rotary,
            scale=self.dim**-0.5,
            window=self.window(i),
            eps=self.config.rms_norm_eps,
        )
        gate_up = read.linear([f"{mlp}.gate_proj", f"{mlp}.up_proj"], self.mlp_bias)
        down = read.linear([f"{mlp}.down_proj"], self.mlp_bias)
        return Layer(
            attention_norm=read.vector(f"model.layers.{i}.input_layernorm.weight"),
            attention=attention,
            mlp_norm=read.vector(f"model.layers.{i}.post_attention_layernorm.weight"),
            mlp=GatedMLP(read.ops, gate_up, down),
        )
