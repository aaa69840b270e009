"""What the commands share of an engine: load it, ask it, take its drafts away, say under which conditions it ran."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from augury.kernels.lean_torch import import_lean
from augury.observe.collection import uncollected
from augury.tools.shared.terminal import waiting

if TYPE_CHECKING:
    from augury.config.sampling import SamplingParams
    from augury.engine.llm import LLM


def load(model: str, quiet: bool = False, **arguments: Any) -> LLM:
    """Build an LLM, with a sign of life on the terminal while it loads."""
    from augury.config.engine import EngineConfig

    EngineConfig.parse(model=model, **arguments)  # a typing error should not wait for torch
    from augury.model.store import resolve

    if missing := next((name for name in ("torch", "transformers") if find_spec(name) is None), None):
        raise ModuleNotFoundError(f"no module named {missing}", name=missing)  # before 93 MB come for nothing
    resolve(model, quiet)  # shows its own progress where it has to fetch or convert
    with waiting(f"loading {model}", quiet):
        with uncollected(lasting=True):
            import_lean()
            from augury.engine.llm import LLM

        llm = LLM(model, **arguments)
        gc.freeze()  # it stays until the end, and the interpreter looks for garbage three times over before that
        return llm


def with_installed(wanted: Mapping[str, Any] | None, model: str, quiet: bool = False) -> Any:
    """A speculative_config that leaves its drafter open, with the installed one of this model; any other as it is."""
    from augury.config.installed import offered, with_drafter

    if wanted is None or not offered(wanted):
        return wanted
    from augury.config.facts import read_facts
    from augury.model.store import resolve

    return with_drafter(wanted, read_facts(str(resolve(model, quiet))))


def chat_prompt(llm: LLM, messages: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """A conversation as the prompt the engine takes."""
    return {"prompt_token_ids": llm.tokenizer.chat(list(messages), add_generation_prompt=True)}


@contextmanager
def without_drafts(llm: LLM) -> Iterator[None]:
    """Plain decoding on an engine built for speculation: the same loop with empty drafts. Only between requests."""
    runner = llm.engine.runner
    drafter, runner.drafter = runner.drafter, None
    try:
        yield
    finally:
        runner.drafter = drafter


def conditions(llm: LLM, params: SamplingParams) -> dict[str, Any]:
    """What a figure depends on besides the code."""
    import torch

    spec = llm.config.speculative_config
    target = llm.engine.target
    return {
        "model": llm.config.model,
        "dtype": str(getattr(target, "dtype", target.cache_dtype)).removeprefix("torch."),
        "device": str(target.device),
        "threads": torch.get_num_threads(),
        "temperature": params.temperature,
        "method": spec.method if spec else None,
        "K": spec.num_speculative_tokens if spec else 0,
        "torch": torch.__version__,
    }
