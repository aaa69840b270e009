"""What a configuration of the dense family says about its checkpoint, and how layers are read from that."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor

from augury.kernels import Ops
from augury.kernels.faces import face
from augury.kernels.quantized import Quantized, quantised
from augury.kernels.unpack import Packed
from augury.model.checkpoint import Checkpoint
from augury.model.dummy import DummyCheckpoint
from augury.model.errors import ModelError
from augury.model.layers import AnyLinear, Attention, GatedMLP, Layer, Linear, Mixture, PackedLinear
from augury.model.mixture_plan import MIXTURES, MixturePlan
from augury.model.packed import PackedFile
from augury.model.quantized_file import QuantizedFile
from augury.model.rope import head_dim
from augury.model.rounded import KINDS, rounded
from augury.model.split import Heads, Inward, Split, SplitWords, gate_lines, inward
from augury.parallel.shares import widths


class TensorReader:
    """Tensors of a checkpoint, in the types the kernels want."""

    def __init__(
        self,
        checkpoint: Checkpoint | DummyCheckpoint,
        stored: PackedFile | QuantizedFile | None,
        ops: Ops,
        dtype: torch.dtype,
        device: torch.device,
        fast: bool,
        rounds: str = "",
    ) -> None:
        self._fast, self._rounds = fast, rounds
        self._checkpoint, self._stored, self._ops, self._dtype, self._device = checkpoint, stored, ops, dtype, device
        self._vector_dtype = torch.float32 if device.type == "cpu" else dtype

    def matrix(self, *names: str) -> Tensor:
        """One matrix, or several stacked."""
        return self._stack(names, self._dtype)

    def vector(self, *names: str) -> Tensor:
        """A norm or bias, or several in a row; float32 on a CPU, where they cost nothing."""
        return self._stack(names, self._vector_dtype)

    def pile(self, lists: list[list[str]], rows: int, columns: int) -> Tensor:
        """Matrices [len(lists), rows, columns], each stacked from the parts its list names; no part is copied twice."""
        out = torch.empty(len(lists), rows, columns, dtype=self._dtype, device=self._device)
        for matrix, names in zip(out, lists, strict=True):
            begin = 0
            for name in names:
                part = self._checkpoint.tensor(name)
                matrix[begin : begin + len(part)].copy_(part)
                begin += len(part)
        return out

    def plain(self, names: list[str]) -> Linear:
        """A projection without bias that is never rounded."""
        return Linear(self._ops, self.matrix(*(f"{name}.weight" for name in names)))

    def linear(
        self, names: list[str], bias: bool, lines: Tensor | None = None, rounds: bool = True
    ) -> Linear | PackedLinear:
        """One projection, or several fused; packed if all are. `lines`: only these; `rounds`: it may be rounded."""
        added = self.vector(*(f"{name}.bias" for name in names)) if bias else None
        if lines is not None and added is not None:
            added = added[lines.to(added.device)]
        weight = self._weight(names, self._rounds if rounds else "")
        if isinstance(weight, Tensor):
            return Linear(self._ops, weight if lines is None else weight[lines.to(weight.device)].contiguous(), added)
        some = weight if lines is None else weight.some(lines)
        arranged = some if isinstance(some, Quantized) else self._ops.arrange(some, self._fast)
        return PackedLinear(self._ops, arranged, added)

    def _weight(self, names: list[str], rounds: str) -> Tensor | Packed | Quantized:
        """Matrices as stored, or rounded; quantised ones are unpacked for the CPU's kernels, which do not read them."""
        if rounds in KINDS:
            return rounded(self.matrix(*(f"{name}.weight" for name in names)), rounds, names[0])
        if rounds:
            found: Tensor | Packed | Quantized | None = quantised(self.matrix(*(f"{name}.weight" for name in names)))
        elif isinstance(self._stored, PackedFile):
            found = self._stored.matrix(tuple(f"{name}.weight" for name in names))
        else:
            found = self._stored.matrix(names) if self._stored else None
        if found is None:
            return self.matrix(*(f"{name}.weight" for name in names))
        if isinstance(found, Quantized) and face(self._device) == "numba":
            found = found.unpacked()
        return found.to(self._dtype) if isinstance(found, Tensor) else found

    def words(self, name: str, vocab: int, split: Split | None) -> Linear | PackedLinear | SplitWords:
        """A matrix with a line for every token (embeddings, LM head); it is never rounded, as in other engines."""
        if split is None:
            return self.linear([name], bias=False, rounds=False)
        lines = torch.arange(*split.words(vocab))
        return SplitWords(self.linear([name], False, lines, rounds=False), split, vocab)

    def inward(self, name: str, bias: bool, split: Split | None, inputs: list[int], size: int) -> AnyLinear:
        """A matrix of `size` lines that writes to the residual stream; `inputs` are its columns of each rank."""
        if split is None:
            return self.linear([name], bias)
        if not split.gathers:
            whole = self.linear([name], bias)
            if isinstance(whole, PackedLinear):
                raise ModelError(f"{split.field}={split.ranks.size} with quantised weights needs exact=True on a GPU.")
            return inward(whole, split, inputs)
        return Inward(self.linear([name], bias, split.lines(size)), split, inputs, widths(size, split.ranks.size))

    @property
    def ops(self) -> Ops:
        """The kernels that will run these weights."""
        return self._ops

    def _stack(self, names: tuple[str, ...], dtype: torch.dtype) -> Tensor:
        parts = [self._checkpoint.tensor(name).to(self._device, dtype) for name in names]
        if len(parts) > 1:
            return torch.cat(parts)
        # A tensor as it was read holds the whole file in memory, most of which is not needed once matrices are rounded.
        return parts[0].clone() if self._rounds in KINDS else parts[0].contiguous()


class DensePlan:
    """What a configuration says about names, shapes, biases and windows."""

    def __init__(self, config: Any) -> None:
        self.config = config
        self.dim = head_dim(config)
        self.heads: int = config.num_attention_heads
        self.kv_heads: int = config.num_key_value_heads
        biased = bool(getattr(config, "attention_bias", False))
        qwen2 = config.model_type == "qwen2"  # biases on q, k, v whatever the config says, never on o
        self.qkv_bias, self.out_bias = qwen2 or biased, biased and not qwen2
        self.mlp_bias = bool(getattr(config, "mlp_bias", False))
        self.head_norms = config.model_type in ("qwen3", "qwen3_moe")
        self.mixtures = MixturePlan.of(config)
        self.attention = Heads(self.heads, self.kv_heads, self.dim)

    def window(self, i: int) -> int:
        """The sliding window of layer i, 0 for none."""
        if self.config.model_type in ("mistral", *MIXTURES):
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
            shapes.update({f"model.layers.{i}.{name}": shape for name, shape in self._layer_shapes(i).items()})
            if self._mixes(i):
                assert self.mixtures
                shapes |= self.mixtures.shapes(i)
        return shapes

    def _mixes(self, i: int) -> bool:
        return self.mixtures is not None and self.mixtures.sparse(i)

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

    def _layer_shapes(self, i: int) -> dict[str, tuple[int, ...]]:
        """The tensors of one layer by their names below its own; without the experts if it is a mixture."""
        hidden = self.config.hidden_size
        shapes: dict[str, tuple[int, ...]] = {
            "input_layernorm.weight": (hidden,),
            "post_attention_layernorm.weight": (hidden,),
        }
        biased = dict.fromkeys(("gate_proj", "up_proj", "down_proj"), self.mlp_bias) | {"o_proj": self.out_bias}
        for name, shape in self.projections().items():
            parent = "self_attn" if name[0] in "qkvo" else "mlp"
            if parent == "mlp" and self._mixes(i):
                continue
            shapes[f"{parent}.{name}.weight"] = shape
            if biased.get(name, self.qkv_bias):
                shapes[f"{parent}.{name}.bias"] = shape[:1]
        if self.head_norms:
            shapes |= {"self_attn.q_norm.weight": (self.dim,), "self_attn.k_norm.weight": (self.dim,)}
        return shapes

    def layer(self, i: int, read: TensorReader, rotary: tuple[Tensor, Tensor], split: Split | None = None) -> Layer:
        """Read one layer, or this rank's part of it."""
        at, hidden = f"model.layers.{i}.self_attn", self.config.hidden_size
        seen = self.attention.widths(split) if split else []
        norms = [read.vector(f"{at}.{x}_norm.weight") if self.head_norms else None for x in "qk"]
        attention = Attention(
            read.ops,
            qkv=read.linear(
                [f"{at}.{x}_proj" for x in "qkv"], self.qkv_bias, self.attention.lines(split) if split else None
            ),
            out=read.inward(f"{at}.o_proj", self.out_bias, split, seen, hidden),
            q_norm=norms[0],
            k_norm=norms[1],
            rotary=rotary,
            scale=self.dim**-0.5,
            window=self.window(i),
            eps=self.config.rms_norm_eps,
        )
        return Layer(
            attention_norm=read.vector(f"model.layers.{i}.input_layernorm.weight"),
            attention=attention,
            mlp_norm=read.vector(f"model.layers.{i}.post_attention_layernorm.weight"),
            mlp=self._mlp(i, read, split),
        )

    def _mlp(self, i: int, read: TensorReader, split: Split | None) -> GatedMLP | Mixture:
        if self._mixes(i):
            assert self.mixtures
            return self.mixtures.read(i, read)
        mlp, hidden, inner = f"model.layers.{i}.mlp", self.config.hidden_size, self.config.intermediate_size
        lines = gate_lines(inner, split) if split else None
        gated = widths(inner, split.ranks.size) if split else []
        gate_up = read.linear([f"{mlp}.gate_proj", f"{mlp}.up_proj"], self.mlp_bias, lines)
        return GatedMLP(read.ops, gate_up, read.inward(f"{mlp}.down_proj", self.mlp_bias, split, gated, hidden))
