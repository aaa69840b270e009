"""`rejection_sample_method: "coupled"` becomes a value that vLLM's configuration takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, get_args

from augury.plugins.vllm.coupled import RULE, DoesNotFit

KEY = "rejection_sample_method"


def admit() -> None:
    """Widen the type of the key; vLLM's configuration is a pydantic dataclass, which is then built again."""
    from pydantic.dataclasses import rebuild_dataclass
    from vllm.config.speculative import SpeculativeConfig

    fields = SpeculativeConfig.__dataclass_fields__
    known = get_args(fields[KEY].type) if KEY in fields else ()
    if "standard" not in known:
        raise DoesNotFit(f"speculative_config.{KEY} is not defined as expected")
    if RULE in known:
        return
    theirs, wider = fields[KEY].type, Literal[(*known, RULE)]
    try:
        _retype(SpeculativeConfig, wider, rebuild_dataclass)
    except Exception as error:  # whatever pydantic raises: the configuration must stay usable without us
        _retype(SpeculativeConfig, theirs, rebuild_dataclass)
        raise DoesNotFit(f"speculative_config.{KEY} could not be widened ({error})") from error


def _retype(config: Any, wanted: Any, rebuild: Callable[..., Any]) -> None:
    config.__dataclass_fields__[KEY].type = wanted
    config.__annotations__[KEY] = wanted
    rebuild(config, force=True)
    if set(get_args(wanted)) != set(get_args(config.__pydantic_fields__[KEY].annotation)):
        raise DoesNotFit("pydantic kept the old type")
