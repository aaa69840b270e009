"""Orders to the engine process that are not requests for text: another drafter, another adapter."""

from __future__ import annotations

import logging
from pathlib import Path

from augury.config.errors import ConfigError
from augury.engine.llm import LLM
from augury.engine.swap import DrafterSwap
from augury.model.errors import ModelError
from augury.serve.wire import Message

logger = logging.getLogger("augury")
KINDS = ("swap", "lora")  # the types of their messages


class Orders:
    """Carries orders out between two steps; everybody waits as long as something is read from a disk."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm
        self._swap = DrafterSwap(llm.engine, llm.config, llm.model_path)

    def carry_out(self, order: Message) -> Message:
        """Do it; the answer says what drafts now, or why it cannot be done."""
        try:
            if order["type"] == "swap":
                self._put_drafter(order["directory"])
            else:
                self._put_adapter(order["name"], order["path"])
        except Exception as error:  # half a file, or one that is odd, must not cost anybody the engine
            if not isinstance(error, (ConfigError, ModelError, OSError)):
                logger.error("%s cannot be carried out", order, exc_info=error)
            return {"type": "control", "error": " ".join(str(error).split())[:500]}
        return {"type": "control", "drafter": self._swap.loaded}

    def _put_drafter(self, directory: str | None) -> None:
        """Load another drafter, or take the last one back."""
        if directory is None:
            self._swap.undo()
        else:
            self._swap.put(Path(directory))

    def _put_adapter(self, name: str, path: str | None) -> None:
        """Load an adapter, or forget it."""
        if self._llm.loras is None:
            raise ConfigError("adapters need --enable-lora.")
        if path is None:
            self._llm.loras.unload(name)
        else:
            self._llm.loras.load(name, path)


def load_adapters(llm: LLM, modules: dict[str, str]) -> None:
    """Those of --lora-modules, and after a restart those that were loaded since."""
    if modules and llm.loras is None:
        raise ConfigError("--lora-modules needs --enable-lora.")
    for name, path in modules.items():
        assert llm.loras is not None
        llm.loras.load(name, path)
