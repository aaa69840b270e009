"""`rejection_sample_method: "coupled"` becomes a value that vLLM's configuration takes."""

from __future__ import annotations

from typing import Literal, get_args

from augury.plugins.vllm.coupled import RULE, DoesNotFit

KEY = "rejection_sample_method"


def admit() -> None:
    """Widen the type of the key; vLLM's configuration is a pydantic dataclass, which is then built again."""
    from pydantic.dataclasses import rebuild_dataclass
    from vllm.config.speculative import SpeculativeConfig

    fields = SpeculativeConfig.__dataclass_fields__
    known = get_args(fields[KEY].type) if KEY in fields else ()
    if "standard" not in known:
        raise DoesNotFit(f"speculative_config.{KEY} is not what it was")
    if RULE in known:
        return
    wider = Literal[(*known, RULE)]  # type: ignore[valid-type]
    fields[KEY].type = wider
    SpeculativeConfig.__annotations__[KEY] = wider
    rebuild_dataclass(SpeculativeConfig, force=True)
    if RULE not in get_args(SpeculativeConfig.__pydantic_fields__[KEY].annotation):
        raise DoesNotFit(f"speculative_config.{KEY} could not be widened")
