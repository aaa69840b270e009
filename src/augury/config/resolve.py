"""From what a user wrote to a SpeculativeConfig: read it, settle what is left open, check what must agree.

Every stage looks at a case and returns the keys it decides, with a note for each decision; none changes its input.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from augury.config import details
from augury.config.checks import check_against
from augury.config.errors import ConfigError
from augury.config.facts import ModelFacts, read_facts
from augury.config.history import renew_keys
from augury.config.parts import OF_ALL, joined, resolve_parts
from augury.config.read import ReadConfig, read
from augury.config.releases import check_method, vllm_quirks
from augury.config.rules import settle_rule
from augury.config.settle import settle_method, settle_model, settle_tokens
from augury.config.speculative import SpeculativeConfig
from augury.config.validate import validated
from augury.methods.facts import TargetInfo
from augury.methods.hybrid import as_one
from augury.methods.notes import Note
from augury.methods.registry import METHODS
from augury.methods.spec import Case, Change, Method


def resolve(
    given: Mapping[str, Any] | Sequence[Mapping[str, Any]] | SpeculativeConfig | None,
    target: TargetInfo | None = None,
    as_of: str | None = None,
    drafter: ModelFacts | None = None,
) -> SpeculativeConfig | None:
    """Check and complete a configuration, or say in one line which key is wrong; its `notes` hold every decision.

    `target` is what is known of the target; `as_of` asks what that vLLM release would say; `drafter` has the files of a
    drafter that lie elsewhere than its name says.
    """
    if given is None:
        return None
    written = read(given.to_dict() if isinstance(given, SpeculativeConfig) else as_one(given), as_of)
    parts = resolve_parts(written.keys, partial(resolve, target=target, as_of=as_of))
    if parts:
        written = written._replace(keys=_of_parts(written.keys, parts))
    model, revision = written.keys.get("model"), written.keys.get("revision")
    files = (drafter or read_facts(model, revision)) if model else None
    case = Case(written.keys, target or TargetInfo(), files)
    named = settle_method(case, as_of)
    card = METHODS[named.keys["method"]]
    if as_of is not None:
        check_method(case.keys.get("method") or card.name, card, as_of)
    case, notes = case.after(named), (*written.notes, *named.notes)
    card.check_target(case)
    for stage in _stages(card, written, as_of):
        change = stage(case)
        case, notes = case.after(change), (*notes, *change.notes)
    notes = (
        *notes,
        *check_against(card, case, as_of),
        *details.name_unused(card, case),
        *vllm_quirks(card, case, as_of),
    )
    return _built(card, case, notes, parts)


def _of_parts(keys: Mapping[str, Any], parts: tuple[SpeculativeConfig, ...]) -> dict[str, Any]:
    """The keys of a hybrid: each drafter as it was resolved, and the longest draft of any."""
    longest = max(part.num_speculative_tokens for part in parts)
    listed = [{name: value for name, value in part.to_dict().items() if name not in OF_ALL} for part in parts]
    adapts = {"adaptive": True} if any(part.adaptive for part in parts) else {}  # one of them was given no number
    return {**keys, **adapts, "drafters": listed, "num_speculative_tokens": longest}


def _stages(card: Method, written: ReadConfig, as_of: str | None) -> tuple[Callable[[Case], Change], ...]:
    """The stages, in order: each may rely on what those before it decided."""
    return (
        partial(settle_model, card, as_of),
        partial(settle_tokens, card, as_of),
        partial(renew_keys, written.dropped),
        settle_rule,
        card.settle,
        details.settle_schedule,
        partial(details.settle_parallel, card),
        details.settle_attention,
        details.settle_tree,
        partial(details.refuse_combinations, card),
    )


def _built(
    card: Method, case: Case, notes: tuple[Note, ...], parts: tuple[SpeculativeConfig, ...]
) -> SpeculativeConfig:
    config = validated(SpeculativeConfig, case.keys)
    config._parts = parts
    config._notes = (*notes, *joined(config, parts), *details.name_served(config))
    config._lookahead = 2 if card.skips_first_row(case) else card.lookahead
    config._modules = card.modules(case)
    for name in ("draft_load_config", "draft_model_config"):
        try:  # free-form objects may hold anything; what JSON cannot hold is refused here rather than when it is saved
            json.dumps(getattr(config, name), allow_nan=False)
        except (TypeError, ValueError, RecursionError):
            raise ConfigError(
                f"speculative_config.{name} holds a value that JSON cannot represent; remove it."
            ) from None
    return config
