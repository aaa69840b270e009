"""Orders to the engine process other than generation requests: load another drafter or adapter."""

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
    """Carries out orders between two steps; all requests wait while something is read from a disk."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm
        self._swap = DrafterSwap(llm.engine, llm.config, llm.model_path)

    def carry_out(self, order: Message) -> Message:
        """Carry out an order; the reply names the drafter that is loaded now, or says why it cannot be done."""
        try:
            if order["type"] == "swap":
                self._put_drafter(order["directory"])
            else:
                self._put_adapter(order["name"], order["path"])
        except Exception as error:  # half a file, or an odd one, must not bring down the engine
            if not isinstance(error, (ConfigError, ModelError, OSError)):
                logger.error("%s cannot be carried out", order, exc_info=error)
            return {"type": "control", "error": " ".join(str(error).split())[:500]}
        return {"type": "control", "drafter": self._swap.loaded}

    def _put_drafter(self, directory: str | None) -> None:
        """Load another drafter, or go back to the previous one."""
        if directory is None:
            self._swap.undo()
        else:
            self._swap.put(Path(directory))

    def _put_adapter(self, name: str, path: str | None) -> None:
        """Load an adapter, or unload it."""
        if self._llm.loras is None:
            raise ConfigError("adapters need --enable-lora.")
        if path is None:
            self._llm.loras.unload(name)
        else:
            self._llm.loras.load(name, path)


def load_adapters(llm: LLM, modules: dict[str, str]) -> None:
    """Load the adapters of --lora-modules and, after a restart, those that were loaded since."""
    if modules and llm.loras is None:
        raise ConfigError("--lora-modules needs --enable-lora.")
    for name, path in modules.items():
        assert llm.loras is not None
        llm.loras.load(name, path)
