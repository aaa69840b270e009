"""The card of `mtp`, and which targets carry multi-token-prediction layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from augury.methods.bands import measured
from augury.methods.errors import problem
from augury.methods.facts import MARK, ModelFacts, TargetInfo
from augury.methods.fits import state_and_token
from augury.methods.lengths import multiple_of
from augury.methods.spec import HEAD_KEYS, PAIRS, Case, GateRecipe, Inferred, Method, Trained, UsualHead, whole

NAMED_THERE = "deepseek_mtp"  # what vLLM called the layers of all targets where only K was given
ASSISTANT = "gemma4_mtp"  # layers that are published as a model of their own
# Retired names, and the first vLLM release that took them; each means `mtp` today.
ALIASES = {
    f"{family}_mtp": since
    for since, families in {
        "0.9": ("deepseek",),
        "0.10.2": ("ernie", "qwen3_next"),
        "0.11": ("mimo", "longcat_flash"),
        "0.11.1": ("glm4_moe", "pangu_ultra_moe"),
        "0.14": ("exaone_moe",),
        "0.15": ("glm4_moe_lite",),
        "0.15.1": ("step3p5",),
        "0.16": ("glm_ocr",),
        "0.17": ("nemotron_h", "qwen3_5"),
        "0.20": ("exaone4_5", "hy_v3"),
        "0.21": ("mimo_v2", "gemma4"),
        "0.24": ("minimax_m3",),
        "0.25": ("bailing_hybrid",),
        "0.26": ("inkling",),
        "0.27": ("kimi_k3",),
        "0.28": ("dots3_note", "bailing_hybrid_v3"),
        "0.29": ("qwen4_exp", "hy_v4"),
        "0.30": ("glm5_next",),
    }.items()
    for family in families
}

REPEATS_QUIETLY = ("step3p5_mtp", "inkling_mtp")  # families whose layers were made to be run again
DEPTH = "num_nextn_predict_layers"


class MTPFamily(NamedTuple):
    """How a target says that it has such layers, and what vLLM calls the drafter it makes of them."""

    alias: str
    drafter: str
    depth: tuple[str, ...] = (DEPTH,)  # keys that may state n_predict, the first found wins
    default: int = 0  # n_predict when no key says it; 0: then there are no such layers


QWEN35 = MTPFamily("qwen3_5_mtp", "Qwen3_5MTP", ("mtp_num_hidden_layers",))
QWEN35_MOE = MTPFamily("qwen3_5_mtp", "Qwen3_5MoeMTP", ("mtp_num_hidden_layers",))
QWEN4 = MTPFamily("qwen4_exp_mtp", "Qwen4ExpMTP", ("mtp_num_hidden_layers", DEPTH))
DSA = MTPFamily("deepseek_mtp", "DeepseekV32MTPModel")
NEMOTRON = MTPFamily("nemotron_h_mtp", "NemotronHMTPModel")
MIMO_V2 = MTPFamily("mimo_v2_mtp", "MiMoV2MTPModel", (), 1)
STEP = MTPFamily("step3p5_mtp", "Step3p5MTP", (DEPTH,), 1)
GEMMA4 = MTPFamily("gemma4_mtp", "Gemma4MTPModel", (), 1)
INKLING = MTPFamily("inkling_mtp", "InklingMTPModel", ("mtp_config.num_nextn_predict_layers", DEPTH))
MINIMAX = MTPFamily("minimax_m3_mtp", "MiniMaxM3MTP", ("num_mtp_modules",), 1)
BAILING_V3 = MTPFamily("bailing_hybrid_v3_mtp", "BailingMoeV3MTPModel")
BAILING = MTPFamily("bailing_hybrid_mtp", "BailingMoeV25MTPModel")

# By model_type or by architecture, whichever the target's config.json shows.
FAMILIES: dict[str, MTPFamily] = {
    "deepseek_v3": MTPFamily("deepseek_mtp", "DeepSeekMTPModel"),
    "deepseek_v32": DSA,
    "glm_moe_dsa": DSA,
    "deepseek_v4": MTPFamily("deepseek_mtp", "DeepSeekV4MTPModel"),
    "deepseek_v41": MTPFamily("deepseek_mtp", ""),
    "dots3_note": MTPFamily("dots3_note_mtp", "Dots3NoteMTPModel", (DEPTH,), 1),
    "pangu_ultra_moe": MTPFamily("pangu_ultra_moe_mtp", "OpenPanguMTPModel"),
    "kimi_k3": MTPFamily("kimi_k3_mtp", "KimiK3MTPModel"),
    "MiMoForCausalLM": MTPFamily("mimo_mtp", "MiMoMTPModel"),
    "MiMoV2ForCausalLM": MIMO_V2,
    "MiMoV2FlashForCausalLM": MIMO_V2,
    "MiMoV2OmniForCausalLM": MTPFamily("mimo_v2_mtp", "MiMoV2OmniMTPModel", (), 1),
    "Glm4MoeForCausalLM": MTPFamily("glm4_moe_mtp", "Glm4MoeMTPModel"),
    "Glm4MoeLiteForCausalLM": MTPFamily("glm4_moe_lite_mtp", "Glm4MoeLiteMTPModel"),
    "GlmOcrForConditionalGeneration": MTPFamily("glm_ocr_mtp", "GlmOcrMTPModel"),
    "ernie4_5_moe": MTPFamily("ernie_mtp", "ErnieMTPModel"),
    "nemotron_h": NEMOTRON,
    "nemotron_h_puzzle": NEMOTRON,
    "qwen3_next": MTPFamily("qwen3_next_mtp", "Qwen3NextMTP", (DEPTH,), 1),
    "qwen4_exp": QWEN4,
    "qwen4_exp_text": QWEN4,
    "qwen3_5": QWEN35,
    "qwen3_5_text": QWEN35,
    "qwen3_5_moe": QWEN35_MOE,
    "qwen3_5_moe_text": QWEN35_MOE,
    "intern_s2_preview": QWEN35_MOE,
    "interns2_mobius": MTPFamily("qwen3_5_mtp", "InternS2MobiusMTP", ("mtp_num_hidden_layers",)),
    "bailing_hybrid": BAILING,
    "BailingMoeV2_5ForCausalLM": BAILING,
    "BailingMoeV3ForCausalLM": BAILING_V3,
    "exaone_moe": MTPFamily("exaone_moe_mtp", "ExaoneMoeMTP"),
    "exaone4_5": MTPFamily("exaone4_5_mtp", "Exaone4_5_MTP"),
    "longcat_flash": MTPFamily("longcat_flash_mtp", "LongCatFlashMTPModel", (DEPTH,), 1),
    "step3p5": STEP,
    "step3p7": STEP,
    "hy_v3": MTPFamily("hy_v3_mtp", "HYV3MTPModel"),
    "hy_v4": MTPFamily("hy_v4_mtp", "HYV4MTPModel"),
    "inkling_mm_model": INKLING,
    "inkling_model": INKLING,
    "gemma4_assistant": GEMMA4,
    "gemma4_unified_assistant": GEMMA4,
    "minimax_m3_vl": MINIMAX,
    "MiniMaxM3SparseForCausalLM": MINIMAX,
    "glm5_next": MTPFamily("glm5_next_mtp", "Glm5NextMTPModel"),
}


def family_of(target: Mapping[str, Any]) -> MTPFamily | None:
    """The family a target's config.json belongs to, if one is known to train such layers."""
    kind = str(target.get("model_type", ""))
    listed = target.get("architectures")
    names = [kind, *map(str, listed if isinstance(listed, list) else ())]
    text = target.get("text_config")
    if isinstance(text, Mapping):
        names.append(str(text.get("model_type", "")))
    found = next((FAMILIES[name] for name in names if name in FAMILIES), None)
    return found or (FAMILIES["exaone4_5"] if "exaone4_5" in kind else None)


def trained_depth(target: Mapping[str, Any]) -> int:
    """How many tokens ahead a target's own layers were trained to predict; 0 when it has none."""
    family = family_of(target)
    if family is None:
        return 0
    text = target.get("text_config")
    places = [target, text if isinstance(text, Mapping) else {}]
    for name in family.depth:
        for place in places:
            depth = _at(place, name)
            if isinstance(depth, int) and not isinstance(depth, bool):
                return max(0, depth)
    return family.default


def _at(place: Mapping[str, Any], dotted: str) -> Any:
    for part in dotted.split("."):
        found = place.get(part) if isinstance(place, Mapping) else None
        if found is None:
            return None
        place = found
    return place


def _check_target(case: Case) -> None:
    """Refuse a target without the layers that would draft."""
    target, name = case.target, case.target.name or "the target"
    if target.facts is None or case.keys.get("model"):
        return
    family, depth, kinds = family_of(target.raw), trained_depth(target.raw), target.raw.get("mtp_layer_types")
    if target.facts.kind == "deepseek_v41":
        says = "does not fit DeepSeek-V4.1; use 'dspark'"
    elif family is None:
        kind = target.facts.kind or "unknown"
        says = f"needs a target trained with MTP layers; {name} (model_type {kind}) has none known"
    elif depth < 1:
        where = family.depth[0] if family.depth else "config.json"
        says = f"needs MTP weights, but {name} does not contain MTP weights ({where} is 0 or missing)"
    elif target.facts.kind == "dots3_note" and isinstance(kinds, list) and len(kinds) != depth:
        says = f"needs one entry of mtp_layer_types per layer: {len(kinds)} for {depth} layers in {name}"
    else:
        return
    raise problem("method", "mtp", says)


def _drafting(case: Case) -> Mapping[str, Any]:
    """The config.json that describes the layers: a checkpoint of their own, or the target's."""
    return case.draft.raw if case.draft else case.target.raw


def _modules(case: Case) -> int:
    return trained_depth(_drafting(case))


def _depth(case: Case) -> Inferred | None:
    depth = _modules(case) or whole(case.stated.get("n_predict"))
    return (depth, "what the checkpoint was trained to predict at once") if depth else None


def _check_tokens(tokens: int, case: Case) -> str | None:
    return multiple_of(_depth(case), tokens)


def _remark_tokens(tokens: int, case: Case) -> str | None:
    family, depth = family_of(_drafting(case)), _depth(case)
    if (family is not None and family.alias in REPEATS_QUIETLY) or tokens <= (depth[0] if depth else 1):
        return None
    if depth and depth[0] > 1:
        return f"the {depth[0]} MTP layers are run again beyond their depth; acceptance falls."
    return "one MTP layer is run repeatedly beyond its depth; acceptance falls."


def _tells(draft: ModelFacts, target: TargetInfo) -> str:
    """Why a whole model with such layers is their checkpoint (a copy of the target, or made for one); else empty."""
    if not trained_depth(draft.raw):
        return ""
    if target.facts is None:
        return "the checkpoint has MTP layers that were trained for a target" if draft.raw.get(MARK) else ""
    ours, theirs = ((one.hidden_size, one.layers, one.vocab_size) for one in (draft, target.facts))
    return "the checkpoint is a copy of the target with MTP layers" if ours == theirs else ""


def _detects(draft: Mapping[str, Any]) -> bool:
    return family_of(draft) is not None


def _checkpoint(target: Mapping[str, Any], tokens: int) -> dict[str, Any]:
    return {**target, DEPTH: 1}


MTP = Method(
    name="mtp",
    help="The multi-token-prediction layers that some targets were trained with and carry in their own files.",
    drafter="augury.drafters.mtp:MtpDrafter",
    aliases=ALIASES,
    keys=(*HEAD_KEYS, "index_share_for_mtp_iteration"),
    weights="target",
    features="last",
    tells=_tells,
    check_target=_check_target,
    default_tokens=_depth,
    check_tokens=_check_tokens,
    remark_tokens=_remark_tokens,
    lookahead=1,
    prefill_lookahead=1,
    modules=_modules,
    vllm_since="0.11",
    vllm_detects=_detects,
    divided=True,
    band=measured(1.6, 1.8, 1.9, 1, "DeepSeek-V3 class, n_predict=1", "DeepSeek-V3 report; operators' reports"),
    usual=UsualHead(joins=state_and_token, of_target=True),
    checkpoint=_checkpoint,
    sharded=True,
    gates={"mtp": GateRecipe("augury.train.eagle:train_mtp", 80)},
    published="each is its target plus one layer, in MiMo's layout, served in its place",
    trained={"mtp": Trained(PAIRS, "augury.train.eagle:Mtp")},
)
