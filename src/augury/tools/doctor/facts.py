"""Everything that a condition may ask about a command, gathered once."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from augury.config.facts import ModelFacts, TargetInfo
from augury.config.read import KEYS
from augury.config.releases import runs_old, vllm_slots
from augury.config.speculative import SpeculativeConfig
from augury.config.truth import truth
from augury.config.versions import Version, version
from augury.methods.mtp import trained_depth
from augury.methods.recognise import by_name, vllm_view
from augury.methods.registry import ALIASES, METHODS, readers
from augury.methods.spec import Method
from augury.tools.doctor.arguments import ReadArguments, whole_number
from augury.tools.doctor.target_names import name_facts

SIZE = re.compile(r"(?<![a-z0-9.])(\d+(?:\.\d+)?)b(?![a-z0-9])")  # 8 of Llama-3.1-8B; neither A3B nor 8x7B
LARGE = 10**9  # weights; under this a GPU decodes so fast that drafting hardly pays
POOLING = ("embed", "embedding", "classify", "score", "reward", "pooling")
STRUCTURED = ("guided-decoding-backend", "structured-outputs-config", "structured-outputs-config.backend")
CPU_IMAGE = re.compile(r"vllm[\w./-]*-cpu\b")
TREE_DEPTH = "suffix_decoding_max_tree_depth"


def command_facts(
    args: ReadArguments, config: SpeculativeConfig | None, method: str | None, release: Version | None
) -> dict[str, Any]:
    """Facts that the command itself states, keyed by the names of fact_names.py."""
    program, keys = args.found.program, {name: setting.value for name, setting in args.keys.items()}
    written = str(keys.get("method") or "")
    tokens = config.num_speculative_tokens if config else whole_number(keys.get("num_speculative_tokens"))
    model = keys.get("model") if isinstance(keys.get("model"), str) else None
    named = by_name(model)
    facts: dict[str, Any] = {
        "tool": args.found.tool,
        "serves": program != "vllm bench serve",
        "benchmarks_serving": program == "vllm bench serve",
        "speculates": args.speculates,
        "method": method,
        "method_written": written,
        "method_alias": written in ALIASES,
        "model": model,
        "k": tokens,
        "rows": tokens + 1 if tokens else None,
        "named_method": named.method if named else None,
        "version": release,
    }
    if method in readers(TREE_DEPTH):
        facts["tree_depth"] = whole_number(keys.get(TREE_DEPTH)) or KEYS[TREE_DEPTH].default
    facts |= _engine(args) | _surroundings(args) | _graphs(args, facts["rows"])
    facts["another_size"] = _another_size(facts["target_name"], model)
    facts["draft_backend"] = _draft_backend(keys.get("attention_backend"), facts, release)
    return {**facts, **_derived(facts, keys, config.method if config else method, release)}


def _engine(args: ReadArguments) -> dict[str, Any]:
    backend = args.flag("attention-backend")
    task = args.flag("task", "runner", "convert")
    draft_tp = args.keys.get("draft_tensor_parallel_size")
    metrics = args.flag("per-request-spec-decode-metrics")
    said = {True: "on", False: "off", None: "default"}
    return {
        "tp": args.number("tensor-parallel-size") or 1,
        "pp": args.number("pipeline-parallel-size") or 1,
        "dp": args.number("data-parallel-size") or 1,
        "dcp": args.number("decode-context-parallel-size") or 1,
        "log_stats": args.switch("disable-log-stats") is not True,
        "draft_tp": whole_number(draft_tp.value) if draft_tp else None,
        "max_num_seqs": args.number("max-num-seqs"),
        "token_budget": args.number("max-num-batched-tokens"),
        "block_size": args.number("block-size"),
        "lora": bool(args.switch("enable-lora")),
        "async_scheduling": said[args.switch("async-scheduling")],
        "enforce_eager": bool(args.switch("enforce-eager")),
        "prefix_caching": said[args.switch("enable-prefix-caching")],
        "chunked_prefill": said[args.switch("enable-chunked-prefill")],
        "attention_backend": str(backend.value).lower() if backend else None,
        "logits_processors": args.flag("logits-processors") is not None,
        "fast_prefill": bool(args.switch("kv-sharing-fast-prefill")),
        "dbo": bool(args.switch("enable-dbo")),
        "kv_transfer": args.flag("kv-transfer-config") is not None,
        "per_request_metrics": metrics is not None and metrics.value != "none",
        "structured": args.flag(*STRUCTURED) is not None,
        "logprobs": args.flag("logprobs-mode", "max-logprobs") is not None,
        "pooling": task is not None and str(task.value) in POOLING,
    }


def _surroundings(args: ReadArguments) -> dict[str, Any]:
    variables = {name: variable.value for name, variable in args.found.environment.items()}
    quantization, temperature = args.flag("quantization"), args.flag("temperature")
    sampler = args.object("additional-config").get("rejection_sampler_config")
    sampler = sampler if isinstance(sampler, dict) else {}
    block = bool(sampler.get("enable_block_verify"))
    backend = variables.get("VLLM_ATTENTION_BACKEND")
    found = {
        "runner": variables.get("VLLM_USE_V2_MODEL_RUNNER", "unset"),
        "v1_switch": variables.get("VLLM_USE_V1", "unset"),
        "offline": variables.get("HF_HUB_OFFLINE", "0").lower() in ("1", "true", "yes"),
        "cpu": _on_cpu(args, variables),
        "ascend": bool(sampler) or "ascend" in args.found.image or getattr(quantization, "value", "") == "ascend",
        "ascend_lossy": block or bool(sampler.get("enable_entropy_verify")),
        "ascend_block": block,
        "temperature": str(temperature.value) if temperature else "unset",
        "output_len": args.number("random-output-len") or args.number("output-len"),
        "target_name": args.target.lower() if args.target is not None else None,
    }
    return found | ({"attention_backend": backend.lower()} if backend and not args.flag("attention-backend") else {})


def _on_cpu(args: ReadArguments, variables: Mapping[str, str]) -> bool:
    """Whether the command is for vLLM's build for CPUs: by its image, its variables or its device."""
    device = args.flag("device")
    named = getattr(device, "value", None) == "cpu" or variables.get("VLLM_TARGET_DEVICE") == "cpu"
    return named or any(name.startswith("VLLM_CPU_") for name in variables) or bool(CPU_IMAGE.search(args.found.image))


def _another_size(target: str | None, head: str | None) -> str | None:
    """Both sizes, worded for a message, if the names of target and head differ in size; a head fits one target."""
    sizes = [SIZE.findall((name or "").rstrip("/").rpartition("/")[2].lower()) for name in (target, head)]
    if not sizes[0] or not sizes[1] or sizes[0][0] in sizes[1]:
        return None
    return f"{sizes[1][0]}B, and the target's {sizes[0][0]}B"


def _draft_backend(own: Any, facts: dict[str, Any], release: Version | None) -> str | None:
    """The drafter's attention backend, in lower case; before 0.24 it inherits the target's."""
    if isinstance(own, str) and own.lower() != "auto":
        return own.lower()
    inherits = release is not None and release < version("0.24")
    return facts["attention_backend"] if inherits else None


def _graphs(args: ReadArguments, rows: int | None) -> dict[str, Any]:
    compilation = args.object("compilation-config")
    dotted = args.flag("compilation-config.cudagraph_capture_sizes")
    several = args.flag("cudagraph-capture-sizes", "cuda-graph-sizes")
    sizes: Any = compilation.get("cudagraph_capture_sizes")
    if several is not None:
        sizes = several.value
    elif dotted is not None:
        sizes = _list(dotted.value)
    mode = compilation.get("cudagraph_mode") or getattr(args.flag("compilation-config.cudagraph_mode"), "value", "")
    numbers = [whole_number(size) for size in sizes] if isinstance(sizes, list) else []
    wrong = [size for size in numbers if size and rows and size % rows]
    return {"capture_sizes_misfit": ", ".join(map(str, wrong)) if wrong else None, "full_graphs": "FULL" in str(mode)}


def _list(text: Any) -> Any:
    try:
        return json.loads(text) if isinstance(text, str) else text
    except (ValueError, RecursionError):
        return None


def _derived(facts: dict[str, Any], keys: dict[str, Any], runs: str | None, release: Version | None) -> dict[str, Any]:
    """Facts that follow from the method that will run, which need not be the one that was written."""
    tokens, seqs, budget = facts["k"], facts["max_num_seqs"], facts["token_budget"]
    card = METHODS.get(runs or "")
    if card is None:
        return {}
    parallel = truth(keys.get("parallel_drafting")) or card.always_parallel
    slots = vllm_slots(card, tokens, parallel) if tokens else None
    found: dict[str, Any] = {
        "continues_target": card.continues_target,
        "extra_slots": slots,
        "runs_async": _runs_async(card, keys, release),
        "old_runner": _old_runner(card, facts, keys, release),
    }
    if seqs and tokens:
        found["verify_rows"] = seqs * (tokens + 1)
    if seqs and slots:
        found["slot_rows"] = slots * seqs
        found["budget_left"] = budget - slots * seqs if budget else None
    return found


def _runs_async(card: Method, keys: dict[str, Any], release: Version | None) -> bool | None:
    if card.vllm_async_since is not None and release is not None and release < version(card.vllm_async_since):
        return None
    return card.vllm_async and not keys.get("disable_padded_drafter_batch")


def _old_runner(card: Method, facts: dict[str, Any], keys: dict[str, Any], release: Version | None) -> bool | None:
    if release is None:
        return None
    old = True if facts["runner"] == "0" else runs_old(card, keys, release)
    return old or (None if facts["cpu"] else old)  # on a CPU it also depends on Triton, which the command does not show


def model_facts(
    facts: dict[str, Any], target: ModelFacts | None, draft: ModelFacts | None, served: int | None
) -> dict[str, Any]:
    """What the two config.json files say."""
    found: dict[str, Any] = {}
    if draft is None and facts["model"]:
        found["draft_named_mtp"] = name_facts(facts["model"].lower(), None).get("named_mtp")
    if target is not None:
        depth = trained_depth(target.raw)
        context = served or target.context
        found |= {"target_type": target.kind, "target_mtp": depth, "target_context": context}
        weights = _weights(target)
        found |= {"target_small": weights < LARGE if weights else None}
        found["target_quantized"] = _quantized(target)
        if facts["method"] in METHODS and METHODS[facts["method"]].weights == "target":
            found["n_predict"] = depth or None
    if draft is not None:
        found |= {"draft_context": draft.context, "draft_quantized": _quantized(draft)}
    if target is not None and draft is not None:
        found["another_size"] = None  # their files are compared, which is better than their names
    if facts["method"] and facts["speculates"]:
        found["vllm_method"] = _vllm_method(facts, target, draft)
    if target is not None and draft is not None and target.vocab_size == draft.vocab_size:
        found["token_ids_differ"] = _ids_differ(target, draft)
    return found


def _vllm_method(facts: dict[str, Any], target: ModelFacts | None, draft: ModelFacts | None) -> str | None:
    written, model, card = facts["method_written"], facts["model"], METHODS[facts["method"]]
    inside = card.weights == "target" and model is None
    if inside and target is None:
        return card.name
    if (model is None and not inside) or (written and written not in METHODS and written not in ALIASES):
        return None
    return vllm_view(written, card, model, TargetInfo(facts["target_name"], target), draft) or None


def _weights(model: ModelFacts) -> int | None:
    layers, width, vocabulary = model.layers, model.hidden_size, model.vocab_size or 0
    return 12 * layers * width * width + vocabulary * width if layers and width else None


def _quantized(model: ModelFacts) -> str | None:
    inner = model.raw.get("quantization_config")
    if not isinstance(inner, dict):
        return None
    method, written = str(inner.get("quant_method", "")), json.dumps(inner, default=str)
    if "fp8" in written.lower() or '"float"' in written:
        return "fp8"
    return "int4" if inner.get("bits") == 4 or method in ("awq", "gptq") else method or None


def _ids_differ(target: ModelFacts, draft: ModelFacts) -> str | None:
    """How the two tokenizers' IDs differ, worded for a message; None if they agree or a tokenizer is missing."""
    ours, theirs = target.tokens, draft.tokens
    if not ours or not theirs:
        return None
    for token, number in ours.items():
        if theirs.get(token, number) != number:
            return f"{token!r} is {number} in the target and {theirs[token]} in the drafter"
    shared = len(ours.keys() & theirs.keys())
    return None if shared > len(ours) // 2 else f"only {shared} of {len(ours)} tokens are in both"
