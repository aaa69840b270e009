"""kv_transfer_config: where extract_hidden_states leaves its files, by the names of vLLM's connector."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from augury.config.errors import ConfigError, shown
from augury.methods.registry import METHODS

METHOD = next(name for name, card in METHODS.items() if card.saves_states)
EXAMPLE = '{"kv_connector": "ExampleHiddenStatesConnector", "kv_role": "kv_producer"}'


class HiddenStatesStorage(BaseModel):
    """kv_connector_extra_config."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    shared_storage_path: str = Field(default_factory=tempfile.gettempdir, min_length=1)
    allow_custom_save_path: bool = False  # requests may name any file this process can write
    num_writer_threads: int = Field(default=8, ge=1, le=256)
    use_synchronization_lock: bool = True  # hold <file>.lock while a file is being written


class KVTransferConfig(BaseModel):
    """The one connector that is supported."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kv_connector: Literal["ExampleHiddenStatesConnector"]
    kv_role: Literal["kv_producer"]
    kv_connector_extra_config: HiddenStatesStorage = Field(default_factory=HiddenStatesStorage)

    @classmethod
    def parse(cls, given: Mapping[str, Any] | KVTransferConfig | None) -> KVTransferConfig | None:
        """Read the user's dictionary, or say in one line which key is wrong and what to write."""
        if given is None or isinstance(given, KVTransferConfig):
            return given
        if not isinstance(given, Mapping):
            raise ConfigError(f"kv_transfer_config must be a dictionary such as {EXAMPLE}, got {type(given).__name__}.")
        try:
            return cls.model_validate(dict(given))
        except ValidationError as error:
            problem = error.errors()[0]
            where = ".".join(map(str, ("kv_transfer_config", *problem["loc"])))
            if problem["type"] == "extra_forbidden":
                raise ConfigError(f"{where} is not supported; remove it.") from None
            if problem["type"] == "missing":
                raise ConfigError(f"{where} is missing; write {EXAMPLE}.") from None
            raise ConfigError(f"{where}={shown(problem['input'])}: {problem['msg'].lower()}.") from None


def check_transfer(config: KVTransferConfig | None, method: str | None) -> None:
    """Require a connector for the method that saves hidden states, and refuse one for any other."""
    if method == METHOD and config is None:
        raise ConfigError(f"speculative_config.method={METHOD!r} needs kv_transfer_config; write {EXAMPLE}.")
    if method != METHOD and config is not None:
        raise ConfigError(f"kv_transfer_config works only with method={METHOD!r} in speculative_config; remove it.")
