"""What config/ refuses: it stops at the first fault, so each one is fixed and the rest resolved again."""

from __future__ import annotations

import re
from typing import Any

from augury.config.errors import ConfigError
from augury.config.facts import ModelFacts, TargetInfo
from augury.config.resolve import resolve
from augury.config.speculative import SpeculativeConfig
from augury.methods.registry import METHODS
from augury.tools.doctor.arguments import ReadArguments
from augury.tools.doctor.found.places import Edit
from augury.tools.doctor.problems import Problem

ROUNDS = 12
OWN_SIZE = "draft_tensor_parallel_size"
UNKNOWN_DRAFTER = "unknown/drafter"
OURS_ALONE = "different tokenizer"  # Augury refuses vocabularies of one size and different tokens, vLLM does not

# A pattern in an error's text and the doctor's name for the problem; the first match applies.
NAMES = (
    ("is not a key of the drafter", "spec-tp"),
    ("is filled in by the engine", "key-internal"),
    (r"\.method=.* is unknown", "method-unknown"),
    ("is unknown", "key-unknown"),
    ("came with vLLM", "method-too-new"),
    ("is refused from vLLM", "method-gap"),
    ("is only a name", "method-gone"),
    ("without a speculative model|module path|dotted import path", "drafter-missing"),
    ("was not provided", "k-missing"),
    ("divisible by n_predict", "k-not-multiple"),
    ("block_size of", "k-over-block"),
    (r"at most the checkpoint's \d+ heads", "k-over-heads"),
    ("must be 1: the method drafts nothing", "k-not-one"),
    ("1 or the target's", "draft-tp"),
    ("does not divide the drafter's", "draft-heads"),
    ("cannot be larger than", "context-too-long"),
    ("MTP|mtp_layer_types|DeepSeek-V4.1", "no-mtp-layers"),
    ("DSpark|dspark_draft_topk", "dspark-misfit"),
    ("vocabulary size|drafts from|different tokenizer", "vocabulary-differs"),
    ("hidden size|states of width", "hidden-size-differs"),
    ("layer ids|name the layers", "layers-missing"),
    ("num_speculative_tokens_per_batch_size", "schedule-wrong"),
    ("must be one of", "value-wrong"),
    ("synthetic", "synthetic-wrong"),
    ("must be <= prompt_lookup_max", "lookup-wrong"),
    ("use_heterogeneous_vocab", "heterogeneous-wrong"),
    ("does not go with|only valid with|works only with", "excludes"),
    ("must be", "value-wrong"),
)


def settle(
    args: ReadArguments, keys: dict[str, Any], target: TargetInfo, release: str | None, drafter: ModelFacts | None
) -> tuple[SpeculativeConfig | None, list[Problem]]:
    """Resolve, fix what is refused and resolve again; returns the configuration, if any, and the problems."""
    problems: list[Problem] = []
    keys, as_of = dict(keys), release
    for _ in range(ROUNDS):
        try:
            files = drafter if keys.get("model") != UNKNOWN_DRAFTER else None
            return resolve(keys, target, as_of, files), problems
        except ConfigError as error:
            text = str(error)
        if release is not None and OURS_ALONE in text:
            keys["model"] = UNKNOWN_DRAFTER  # the knowledge has an entry for it; vLLM itself would start
            continue
        name = next((name for words, name in NAMES if re.search(words, text)), "refused")
        key = _key_in(text)
        repair = _repair(name, key, text, keys, target)
        problems.append(_problem(name, key, text, args, repair))
        if name in ("method-too-new", "method-gap", "method-gone"):
            as_of, keys["adaptive"] = None, False  # other faults can still be found
        elif not _mended(name, key, repair, keys):
            break
    return None, problems


def _key_in(text: str) -> str:
    found = re.match(r"speculative_config\.'?(\w+)", text)
    return found[1] if found else "method"


def _repair(name: str, key: str, text: str, keys: dict[str, Any], target: TargetInfo) -> tuple[str, Any] | None:
    """("set", value), ("rename", name) or ("drop", None) if the error implies the repair; otherwise None."""
    number, close = re.search(r"write (\d+)", text), re.search(r"did you mean '([^']+)'", text)
    if name == "spec-tp":
        fits = target.tensor_parallel_size is None or keys[key] in (1, target.tensor_parallel_size)
        return ("rename", OWN_SIZE) if fits and OWN_SIZE not in keys else ("drop", None)
    if name == "key-unknown":
        return ("rename", close[1]) if close and close[1] not in keys else ("drop", None)
    if close:
        return "set", close[1]
    if name == "lookup-wrong":
        return "set", keys.get("prompt_lookup_max")
    if name in ("heterogeneous-wrong", "excludes", "key-internal"):
        return "drop", None
    if number and name not in ("schedule-wrong",):
        return "set", int(number[1])
    return None


def _problem(name: str, key: str, text: str, args: ReadArguments, repair: tuple[str, Any] | None) -> Problem:
    setting = args.keys.get(key)
    says = {"text": text.removeprefix("speculative_config.").rstrip("."), "key": key}
    if setting is None:
        return Problem(name, *anchor(args), says)
    edits: list[Edit] = []
    if repair is not None:
        word, value = repair
        edits = setting.set(value) if word == "set" else setting.rename(value) if word == "rename" else setting.drop()
    return Problem(name, setting.start, setting.end, says, edits)


def anchor(args: ReadArguments) -> tuple[int, int]:
    """Where to point when nothing in particular is at fault."""
    if "method" in args.keys:
        return args.keys["method"].start, args.keys["method"].end
    flag = args.flag("speculative-config", "spec-method", "spec-model", "spec-tokens")
    if flag is not None:
        return flag.start, flag.end
    if args.whole is not None:
        start, end = args.whole.place
        return start, min(end, start + 1)
    return args.found.start, args.found.end


def _mended(name: str, key: str, repair: tuple[str, Any] | None, keys: dict[str, Any]) -> bool:
    """Change the keys so that the next fault can surface; False if it is not clear how."""
    if name == "k-missing":
        keys["num_speculative_tokens"] = 1
        return True
    card = METHODS.get(str(keys.get("method")))
    if name == "drafter-missing" and "model" not in keys and (card is None or card.has_weights):
        keys["model"] = UNKNOWN_DRAFTER
        return bool(keys.get("method"))
    if key not in keys:
        return False
    if repair is None or repair[0] == "drop" or (repair[0] == "set" and keys[key] == repair[1]):
        if key in ("method", "model", "num_speculative_tokens"):
            return False
        del keys[key]
        return True
    word, value = repair
    if word == "rename":
        keys[value] = keys.pop(key)
    else:
        keys[key] = value
    return True
