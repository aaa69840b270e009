"""Facts for the rules from the field: prefix caching, tool parsing, graph capture, and the kinds of both models."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from augury.config.facts import ModelFacts
from augury.config.versions import version
from augury.methods.mtp import MTP
from augury.methods.recognise import by_name
from augury.methods.registry import METHODS
from augury.tools.doctor.arguments import ReadArguments, whole_number
from augury.tools.doctor.target_names import COPIES, name_facts, pair_facts
from augury.tools.knowledge.families import by_name as family_by_name
from augury.tools.knowledge.families import by_type

HYBRID_CACHED = version("0.26")  # from here prefix caching is on for hybrid targets too, unless switched off
RECURRENT = ("linear_attention", "mamba", "recurrent", "conv")  # kinds of layers with a state instead of a cache
PARTS = ("vision_config", "audio_config", "thinker_config")  # of a config.json whose model takes more than text
COARSE = ("awq", "gptq", "modelopt", "nvfp4", "int4")  # quantisations that a head rarely survives
INSTALLED = re.compile(r"\bpip3?\s+install\b[^\n;&|]{0,400}[\s'\"]augury(?=[\s'\"\[=<>~!;]|$)")
STRETCHES = ("rope", "max_position_embeddings")  # overrides that change how far positions reach


class FileContext(NamedTuple):
    """What else is in the file that holds a command."""

    arctic: bool = False  # it installs arctic-inference
    augury: bool = False  # it installs Augury alongside vLLM
    speculating: bool = False  # one of its commands speculates, which a benchmark in the file may send requests to
    handed_over: Mapping[str | None, str] = {}  # by target: the differing K of paired servers


def beside(text: str, commands: Iterable[ReadArguments]) -> FileContext:
    """The context that a file's commands share, gathered before they are examined one by one."""
    listed = list(commands)
    servers: dict[str | None, list[tuple[str, int]]] = {}
    for args in listed:
        k = whole_number(args.keys["num_speculative_tokens"].value) if "num_speculative_tokens" in args.keys else None
        if k and args.flag("kv-transfer-config"):
            role = str(args.object("kv-transfer-config").get("kv_role"))
            servers.setdefault(args.target, []).append((role, k))
    differ = {target: said for target, pairs in servers.items() if (said := _unequal(pairs))}
    arctic = "arctic-inference" in text or "arctic_inference" in text
    return FileContext(arctic, bool(INSTALLED.search(text)), any(args.speculates for args in listed), differ)


def _drafts_nothing(args: ReadArguments) -> bool:
    setting = args.keys.get("num_speculative_tokens_per_batch_size")
    ranges = setting.value if setting is not None and isinstance(setting.value, list) else []
    return any(isinstance(one, list) and one[-1:] == [0] for one in ranges)


def _unequal(servers: list[tuple[str, int]]) -> str:
    """The K of both sides if no prefill server matches any decode server; a file may hold several deployments."""
    first, second = ({k for role, k in servers if role == side} for side in ("kv_producer", "kv_consumer"))
    if not (first or second) and len(servers) == 2:  # the roles do not tell the direction
        first, second = {servers[0][1]}, {servers[1][1]}
    return "" if first & second or not (first and second) else " and ".join(map(str, sorted(first | second)))


def field_facts(
    args: ReadArguments,
    facts: Mapping[str, Any],
    target: ModelFacts | None,
    draft: ModelFacts | None,
    others: FileContext,
) -> dict[str, Any]:
    """Facts for the rules from the field, keyed by the names of fact_names.py."""
    found = _flags(args) | _kind(facts, target) | {"schedule_zero": _drafts_nothing(args)}
    if args.switch("language-model-only"):
        found["target_multimodal"] = False  # served as a text model
    found |= pair_facts(facts["target_name"], facts["model"]) if target is None or draft is None else {}
    found["draft_hybrid"] = _is_hybrid(facts["model"], draft)
    found["prefix_cached"] = _cached(facts, found.get("target_hybrid"))
    inside = args.speculates and not facts["model"]  # the target drafts for itself, and its name may say how
    found["target_is_drafter"] = not inside and _is_drafter(facts["target_name"])
    found["mtp_quantized"] = _mtp_quantized(target) if target is not None else None
    for side, name in (("draft", facts["model"]), ("target", facts["target_name"])):
        found[f"{side}_copy"] = _copy(name)
    depth, k = facts.get("n_predict") or found.get("named_depth"), facts["k"]
    found["k_over_depth"] = k // depth if k and depth else None
    if facts["kv_transfer"]:
        found["handed_over_k"] = others.handed_over.get(args.target)
    return found


def _copy(name: str | None) -> str | None:
    """The quantisation a name ends with; in the middle of a drafter's name it is that of the target it is for."""
    last = (name or "").rstrip("/").rpartition("/")[2].lower()
    return next((found[1] for found in COPIES.finditer(last) if found.end() == len(last)), None)


def _flags(args: ReadArguments) -> dict[str, Any]:
    parser, cache = args.flag("tool-call-parser"), args.flag("kv-cache-dtype")
    mode = args.flag("mamba-cache-mode")
    compilation = args.object("compilation-config")
    limit = args.number("max-cudagraph-capture-size") or whole_number(compilation.get("max_cudagraph_capture_size"))
    sizes = compilation.get("cudagraph_capture_sizes")
    if limit is None and isinstance(sizes, list):
        limit = max(filter(None, map(whole_number, sizes)), default=None)
    return {
        "tool_parser": str(parser.value).lower() if parser else None,
        "auto_tools": bool(args.switch("enable-auto-tool-choice")),
        "kv_cache_dtype": str(cache.value).lower() if cache else "auto",
        "mamba_cache": str(mode.value).lower() if mode else "default",
        "capture_limit": limit,
        "served_context": args.number("max-model-len"),
        "stretched": any(word in json.dumps(args.object("hf-overrides"), default=str) for word in STRETCHES),
        "graph_mode": str(compilation.get("cudagraph_mode") or "").upper(),
    }


def _kind(facts: Mapping[str, Any], target: ModelFacts | None) -> dict[str, Any]:
    """Hybrid or not, multimodal or not: by the target's files, otherwise by its name."""
    if target is None:
        return name_facts(facts["target_name"], facts["version"])
    row = by_type(target.kind)
    return {
        "target_hybrid": _is_hybrid(None, target),
        "target_multimodal": any(target.raw.get(part) for part in PARTS) or (row is not None and row.multimodal),
    }


def _is_hybrid(name: str | None, files: ModelFacts | None) -> bool | None:
    """Whether some layers keep a state: by a model's files, otherwise by its name."""
    if files is None:
        named = family_by_name(name) if name else None
        return named.hybrid if named is not None else None
    text, row = files.raw.get("text_config"), by_type(files.kind)
    places = [files.raw, text if isinstance(text, dict) else {}]
    kinds = " ".join(json.dumps(place.get("layer_types") or place.get("layers_block_type") or "") for place in places)
    return any(word in kinds for word in RECURRENT) or (row is not None and row.hybrid)


def _cached(facts: Mapping[str, Any], hybrid: bool | None) -> bool | None:
    """Whether prefixes are cached: as the command says, otherwise by the release's default; None if unknown."""
    if facts["prefix_caching"] != "default":
        return bool(facts["prefix_caching"] == "on")
    if hybrid is None or facts["version"] is None:
        return None
    return not hybrid or bool(facts["version"] >= HYBRID_CACHED)


def _is_drafter(name: str | None) -> bool:
    """Whether the model that is served is, by its name, a head for another one; speculators name their own target."""
    last = (name or "").rstrip("/").rpartition("/")[2]
    named = by_name(last)
    head = named is not None and METHODS[named.method].features != "none" and METHODS[named.method].weights != "target"
    vision = last.startswith(("eagle2", "eagle-2"))  # a family of vision models that is called so
    return "speculator" not in last and not vision and (head or last.endswith("-assistant"))


def _mtp_quantized(target: ModelFacts) -> bool | None:
    """Whether a coarsely quantised target's MTP layers are quantised too; None if it is not coarsely quantised."""
    written_there = target.raw.get("quantization_config")
    inner = written_there if isinstance(written_there, dict) else {}
    written = json.dumps(inner, default=str).lower()
    if not any(word in written for word in COARSE) and '"num_bits": 4' not in written:
        return None
    kept = [inner.get(name) for name in ("ignore", "modules_to_not_convert", "exclude_modules")]
    return MTP.name not in json.dumps(kept).lower()
