"""EngineConfig: the arguments of `LLM(...)` and of the command line, by vLLM's names."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError

from augury.config.errors import ConfigError, unknown_keyword
from augury.config.facts import ModelFacts, TargetInfo, read_facts
from augury.config.harmless import HARMLESS, OF_A_SERVER, check_overrides, remark
from augury.config.installed import check_target, offered, with_drafter
from augury.config.resolve import resolve
from augury.config.runnable import check_runnable
from augury.config.speculative import SpeculativeConfig
from augury.config.speculators import swap
from augury.config.surfaces import SHORTCUTS
from augury.config.transfer import KVTransferConfig, check_transfer
from augury.methods.hybrid import as_one
from augury.methods.notes import LOUD

logger = logging.getLogger("augury")
MOST_SEQS = 65536  # requests in one step; each has a slot of its own in memory
Quantization = Literal["fp8", "int8", "int4", "compressed-tensors", "awq", "gptq", "awq_marlin", "gptq_marlin"]


class EngineConfig(BaseModel):
    """What an engine is built from; None means chosen at start, and the choice is written back."""

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    model: str
    tokenizer: str | None = Field(default=None, description="If not the model's own.")
    dtype: Literal["auto", "float32", "bfloat16", "float16", "half", "float"] = Field(
        default="auto", description="Arithmetic of the model; 'auto' suits the device and the weights."
    )
    device: str = Field(default="auto", description="cpu, cuda, or auto: a GPU if there is one.")
    tensor_parallel_size: int = Field(
        default=1,
        ge=1,
        le=64,
        description="Number of processes the model is split over; each has a GPU, or a share of the cores.",
    )
    max_model_len: int | None = Field(default=None, ge=1, description="Longest prompt and answer together, in tokens.")
    max_num_seqs: int | None = Field(
        default=None, ge=1, le=MOST_SEQS, description="Maximum number of requests in one step."
    )
    max_num_batched_tokens: int | None = Field(default=None, ge=1, description="Maximum number of tokens in one step.")
    long_prefill_token_threshold: int = Field(
        default=0, ge=0, description="Maximum number of prompt tokens of one request in a step; 0 for no limit."
    )
    block_size: int = Field(default=16, ge=1, le=256, description="Tokens in a block of the KV cache.")
    num_gpu_blocks_override: int | None = Field(default=None, ge=2, description="Blocks of the KV cache.")
    kv_cache_memory_bytes: int | None = Field(default=None, ge=1, description="Size of the KV cache in bytes.")
    gpu_memory_utilization: float = Field(default=0.9, gt=0, le=1, description="Fraction of the GPU's memory to use.")
    enable_prefix_caching: bool = Field(default=True, description="Reuse the KV cache of shared prompt prefixes.")
    kv_offloading_size: float | None = Field(
        default=None, gt=0, description="GiB of host memory for prefixes evicted from the KV cache."
    )
    kv_offloading_backend: Literal["native"] = Field(
        default="native", description="What stores them; 'native' is Augury itself."
    )
    enable_chunked_prefill: bool = Field(default=True, description="Read long prompts in chunks.")
    enforce_eager: bool = Field(default=False, description="Run without CUDA graphs.")
    exact: bool = Field(
        default=False, description="On a GPU: the same bits for a row in any batch, with chains of drafts or without."
    )
    cpu_arithmetic: Literal["exact", "fast"] = Field(
        default="exact",
        description="With packed weights on a CPU: 'exact' (float32) or 'fast' (8-bit activations, as in llama.cpp).",
    )
    quantization: Quantization | None = Field(
        default=None,
        description="Quantise the layers to 'fp8' (on a CPU 'int8' or 'int4'); a quantised checkpoint needs no flag.",
    )
    kv_cache_dtype: Literal["auto", "fp8", "fp8_e4m3", "fp8_e5m2"] = Field(
        default="auto", description="Type of keys and values: the model's own, or 8-bit floats on a GPU."
    )
    seed: int = Field(default=0, description="Seed for requests without one.")
    disable_log_stats: bool = True
    load_format: Literal["auto", "safetensors", "gguf", "dummy"] = Field(
        default="auto", description="Format of the weights; 'dummy' uses random ones."
    )
    skip_tokenizer_init: bool = False
    model_impl: Literal["auto", "dense", "adapter", "vllm", "transformers"] = Field(
        default="auto", description="Augury's own model code ('dense') or that of transformers ('adapter')."
    )
    enable_lora: bool = Field(default=False, description="Answer with LoRA adapters where requests ask for them.")
    max_loras: int = Field(
        default=1, ge=1, le=64, description="Minimum number of adapters a step can use; see max_cpu_loras."
    )
    max_cpu_loras: int | None = Field(
        default=None, ge=1, le=64, description="Adapters loaded at a time; one step may use them all (8)."
    )
    max_lora_rank: int = Field(default=16, ge=1, le=512, description="The largest rank of an adapter.")
    speculative_config: SpeculativeConfig | None = None
    hf_overrides: dict[str, Any] | None = Field(
        default=None, description="Values of the model's config.json; any that differ from the file are refused."
    )
    kv_transfer_config: KVTransferConfig | None = Field(default=None, description="Where hidden states are saved.")

    _wanted: Any = PrivateAttr(default=None)  # speculative_config as the user wrote it

    _asked: dict[str, Any] = PrivateAttr(default_factory=dict)  # field values before anything was chosen for them

    @property
    def lora_places(self) -> int:
        """How many adapters there is room for."""
        return max(self.max_loras, self.max_cpu_loras or 8)

    @classmethod
    def parse(cls, **given: Any) -> EngineConfig:
        """Check the arguments, or say in one line which is wrong and what to write."""
        for name in list(given):
            if name in NOT_YET:
                check_neutral(name, given.pop(name))
            elif name in (*HARMLESS, *OF_A_SERVER):
                if given.pop(name) not in (None, False, {}, "auto"):
                    logger.warning("%s.", remark(name))
            elif name not in (*cls.model_fields, *SHORTCUTS, "additional_config"):
                raise unknown_keyword(name, [*cls.model_fields, *NOT_YET], "LLM")
        wanted = _speculation(given)
        swapped = swap(given["model"], wanted) if isinstance(given.get("model"), str) else None
        if swapped:
            given["model"], wanted = swapped
        given["speculative_config"] = None if offered(wanted) else resolve(wanted)  # chosen once the target is known
        given["kv_transfer_config"] = KVTransferConfig.parse(given.get("kv_transfer_config"))
        try:
            config = cls(**given)
        except ValidationError as error:
            problem = error.errors()[0]
            raise ConfigError(f"{problem['loc'][0]}={problem['input']!r}: {problem['msg'].lower()}.") from None
        config._wanted, config._asked = wanted, dict(config)
        return config

    def differs(self, other: EngineConfig, names: Sequence[str]) -> str | None:
        """The first of these fields that differs from `other`, whose values match as given and as chosen; else None."""
        alike = ((name, (getattr(other, name), other._asked.get(name))) for name in names)
        return next((name for name, theirs in alike if getattr(self, name) not in theirs), None)

    def check_speculation(self, target: ModelFacts | None) -> None:
        """Compare the drafter with the target, now that its files are there, and log the decisions worth a warning."""
        check_overrides(self.hf_overrides, target.raw if target else None)
        if self._wanted is None:
            check_transfer(self.kv_transfer_config, None)
            return
        known = TargetInfo(self.model, target, self.tensor_parallel_size, self.max_model_len)
        spec = resolve(with_drafter(self._wanted, target), known)
        assert spec is not None
        for part in spec.parts or (spec,):
            check_target(read_facts(part.model) if part.model else None, target)
            check_runnable(part, self.tensor_parallel_size)
        check_transfer(self.kv_transfer_config, spec.method)
        self.speculative_config = spec
        for note in spec.notes:
            if note.kind in LOUD:
                logger.warning("speculative_config.%s", note)


def _speculation(given: dict[str, Any]) -> Mapping[str, Any] | None:
    """The speculative_config, with vLLM's spec_* arguments and vllm-ascend's additional_config merged in."""
    wanted = as_one(given.get("speculative_config"))
    if isinstance(wanted, SpeculativeConfig):
        wanted = wanted.to_dict()
    if wanted is not None and not isinstance(wanted, Mapping):
        raise ConfigError(f"speculative_config must be a dictionary of keys, got {type(wanted).__name__}.")
    shortcuts = {name: given.pop(name) for name in SHORTCUTS if name in given}
    extra = given.pop("additional_config", None) or {}
    sampler = extra.get("rejection_sampler_config") if isinstance(extra, dict) else None
    if extra and (sampler is None or len(extra) > 1):
        raise ConfigError(f"additional_config={extra!r}: only rejection_sampler_config is known; remove the rest.")
    added = {SHORTCUTS[name]: value for name, value in shortcuts.items() if value is not None}
    if sampler is not None:
        added["rejection_sampler_config"] = sampler
    if not added:
        return wanted
    if wanted is None and not shortcuts:
        raise ConfigError("additional_config.rejection_sampler_config needs a speculative_config beside it.")
    for name in added:
        if name in (wanted or {}):
            raise ConfigError(f"{name!r} is given twice, inside speculative_config and beside it; keep one.")
    return {**(wanted or {}), **added}


# vLLM's arguments of which only the neutral values are supported so far, so that scripts run unchanged.
NOT_YET: dict[str, tuple[Any, ...]] = {
    "pipeline_parallel_size": (1,),
    "data_parallel_size": (1,),
    "async_scheduling": (None, False, True),
    "logprobs_mode": ("raw_logprobs",),
    "max_logprobs": (20,),
    "lora_dtype": ("auto",),
    "fully_sharded_loras": (False,),
    "revision": (None,),
    "tokenizer_mode": ("auto",),
    "distributed_executor_backend": (None, "mp", "uni"),
}


def check_neutral(name: str, value: Any, neutral: Mapping[str, tuple[Any, ...]] = NOT_YET) -> None:
    """Refuse any but the neutral values of an argument in `neutral`."""
    if value not in neutral[name]:
        allowed = " or ".join(repr(v) for v in neutral[name])
        raise ConfigError(f"{name}={value!r} is not supported yet; leave it out or set it to {allowed}.")
