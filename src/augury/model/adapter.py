"""Runs any other causal language model of transformers, through its attention interface.

The rows of a pass go in as one sequence of tokens with their positions; where the model would attend, our function
stores keys and values in the paged cache and attends over what each row sees (foreign_attention.py). The model itself
never sees a mask or a cache. Recurrent layers are run by mixers (mixers.py), with states of ours.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from augury.kernels import Ops, choose
from augury.kernels.rows import Rows
from augury.model.checkpoint import read_config
from augury.model.errors import ModelError, one_line
from augury.model.foreign import decoder_layers, decoder_of, fix_rotary, quietly, refuse
from augury.model.foreign_attention import ATTENTION, ForwardContext, Probe, current, let_mix, tune_by_position
from augury.model.layers import Layer
from augury.model.mixers import recurrent_layers
from augury.model.prove import check_mixer, steps_error
from augury.model.rope import context_length, switch_length
from augury.model.row_invariant import use_row_invariant_matrices
from augury.model.split import Split
from augury.model.state_pass import StatePass
from augury.model.target import NORMED, KVCache, LayerShape, TargetOutput

T = TypeVar("T")


class Adapter:
    """A model of transformers, as a Target."""

    any_size = False  # torch prepares a product for each number of rows
    capturable = False  # models of transformers may wait for the host, for example to route tokens to experts

    def __init__(self, model: Any, ops: Ops, max_position: int) -> None:
        self._model, self._ops = model, ops
        self._takes_wanted = "logits_to_keep" in inspect.signature(model.forward).parameters
        self._layers = decoder_layers(model)
        self.hidden_size: int = model.config.get_text_config(decoder=True).hidden_size
        self.num_layers = len(self._layers)
        self.max_position = max_position
        self.switch_length = switch_length(model.config.get_text_config(decoder=True))
        self.device = next(model.parameters()).device
        # The CPU kernels compute in float32 whatever the weights are stored in.
        self.cache_dtype = torch.float32 if self.device.type == "cpu" else next(model.parameters()).dtype
        self.cache = KVCache()
        self.words = None
        self.split: Split | None = None  # it is never divided among ranks
        self.draft_split: Split | None = None
        self.layers: list[Layer] = []
        mixers = self._with_reason(lambda: recurrent_layers(model, ops))
        self.state_shapes = [mixer.shape for _, mixer in mixers]
        if mixers:
            self._with_reason(lambda: check_mixer(*mixers[0]))
        for number, (module, mixer) in enumerate(mixers):
            let_mix(module, mixer, number)
        for module in model.modules():
            tune_by_position(module)
        self._hook()
        self._chunk = 0  # the chunk size of a model with chunked attention
        self.layer_shapes, self.vocab_size = self._measure()

    @classmethod
    def load(
        cls,
        directory: Path,
        dtype: torch.dtype,
        device: torch.device,
        max_model_len: int | None = None,
        dummy: bool = False,
    ) -> Adapter:
        """Read a checkpoint directory, or make a `dummy`; code that came with it is never run."""
        config = read_config(directory)
        refuse(config)
        model = _make_model(config, dtype, device) if dummy else _read_model(directory, dtype)
        model = model.to(device).eval().requires_grad_(False)
        fix_rotary(model, config, max_model_len or context_length(config))
        ops = choose(device)
        if device.type == "cpu":
            use_row_invariant_matrices(model, ops)
        adapter = cls(model, ops, context_length(config))
        adapter._prove()
        return adapter

    @torch.no_grad()
    def forward(self, rows: Rows, features: tuple[int, ...] = ()) -> TargetOutput:
        """See Target.forward."""
        run = self._pass(rows, features)
        token = current.set(run)
        try:
            wanted = {"logits_to_keep": rows.wanted} if self._takes_wanted else {}
            out = self._model(input_ids=rows.tokens[None], position_ids=rows.positions[None], use_cache=False, **wanted)
        finally:
            current.reset(token)
        logits = out.logits[0] if self._takes_wanted else out.logits[0, rows.wanted]
        return TargetOutput(logits.float(), tuple(run.streams[i].to(self.cache_dtype) for i in features))

    @torch.no_grad()
    def run(self, rows: Rows, hidden: Tensor) -> Tensor:
        """The residual stream after all layers [R, hidden], from hidden states in place of embeddings."""
        run = self._pass(rows, (self.num_layers,))
        token = current.set(run)
        try:
            given = hidden.to(next(self._model.parameters()).dtype)[None]
            decoder_of(self._model)(inputs_embeds=given, position_ids=rows.positions[None], use_cache=False)
        finally:
            current.reset(token)
        return run.streams[self.num_layers].to(self.cache_dtype)

    @torch.no_grad()
    def embed(self, tokens: Tensor) -> Tensor:
        """See Target.embed."""
        found: Tensor = self._model.get_input_embeddings()(tokens)
        return found.to(self.cache_dtype)

    @torch.no_grad()
    def project(self, hidden: Tensor) -> Tensor:
        """See Target.project."""
        head = self._model.get_output_embeddings()
        logits: Tensor = head(hidden.to(head.weight.dtype))
        return logits.float()

    def _hook(self) -> None:
        """Hook the decoder layers so that a pass keeps their residual streams."""

        def entering(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            current.get().keep(0, args[0] if args else kwargs["hidden_states"])

        def leaving(number: int) -> Any:
            return lambda _, args, out: current.get().keep(number, out if isinstance(out, Tensor) else out[0])

        def finished(_: nn.Module, args: Any, out: Any) -> None:
            current.get().keep(NORMED, out[0])

        decoder_of(self._model).register_forward_hook(finished)
        self._layers[0].register_forward_pre_hook(entering, with_kwargs=True)
        for i, layer in enumerate(self._layers):
            layer.register_forward_hook(leaving(i + 1))

    def _pass(self, rows: Rows, features: tuple[int, ...]) -> ForwardContext:
        states = None if self.cache.states is None else StatePass(self.cache.states, rows)
        view = self._ops.view(rows)
        return ForwardContext(self._ops, view, self.cache, features, states, rows.long, rows.positions, self._chunk)

    def _measure(self) -> tuple[list[LayerShape], int]:
        """Learn the cache shapes and the vocabulary from a dry run without attention."""
        probe = Probe()
        token = current.set(probe)
        try:
            ids = torch.arange(3, device=self.device)[None]
            model = self._model
            logits = self._with_reason(lambda: model(input_ids=ids, position_ids=ids, use_cache=False).logits)
        except ModelError:
            raise
        except (AttributeError, TypeError, ValueError, LookupError) as error:  # its own code, given our Mask
            why = f"it does not run without a mask and a cache of its own ({one_line(error)})"
            raise _unsupported(model, why) from error
        finally:
            current.reset(token)
        attending = self.num_layers
        if self.state_shapes:
            attending = sum(type(m).__name__.endswith("Attention") for m in decoder_of(self._model).modules())
        if (times := len(probe.shapes)) != attending:
            why = f"its {attending} attention layers call the attention interface {times} times, not once each"
            raise _unsupported(self._model, why)
        self._chunk = probe.chunk
        return probe.shapes, logits.shape[-1]

    def _with_reason(self, ask: Callable[[], T]) -> T:
        try:
            return ask()
        except ModelError as error:
            raise _unsupported(self._model, str(error)) from None

    def _prove(self) -> None:
        """Refuse a model whose scores change when a sequence arrives token by token: it keeps its own state."""
        error = steps_error(self)
        if not error < (1e-2 if next(self._model.parameters()).dtype == torch.float32 else 0.2):
            raise _unsupported(self._model, "its scores change when a sequence comes in pieces")


def _read_model(directory: Path, dtype: torch.dtype) -> Any:
    try:
        with quietly():
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                directory,
                dtype=dtype,
                attn_implementation=ATTENTION,
                trust_remote_code=False,
                local_files_only=True,
                use_safetensors=True,
                output_loading_info=True,
            )
    except (ValueError, OSError, KeyError, ImportError, RuntimeError, SafetensorError) as error:
        raise ModelError(f"transformers cannot load {directory}: {error}") from error
    model, report = loaded
    faults = [
        f"{fault}: {', '.join(map(str, sorted(report[key])))}" for fault, key in _FAULTS.items() if report.get(key)
    ]
    if faults:
        raise ModelError(f"the weights in {directory} do not fit its config.json; {'; '.join(faults)}")
    return model


def _make_model(config: Any, dtype: torch.dtype, device: torch.device) -> Any:
    """A model with transformers' initial random weights."""
    try:
        with quietly(), torch.device(device):
            return AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=ATTENTION)
    except (ValueError, KeyError, ImportError, RuntimeError) as error:
        raise ModelError(f"transformers cannot make a {config.model_type!r}: {error}") from error


_FAULTS = {"missing": "missing_keys", "wrong shape": "mismatched_keys"}


def _unsupported(model: Any, why: str) -> ModelError:
    return ModelError(f"model type {model.config.model_type!r} cannot run here: {why}.")
