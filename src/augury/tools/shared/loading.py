"""Engine helpers for commands: loading, chat prompts, plain decoding, and the conditions of a run."""

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
    """Build an LLM, with a spinner in the terminal while it loads."""
    from augury.config.engine import EngineConfig

    EngineConfig.parse(model=model, **arguments)  # reports option errors before importing torch
    from augury.model.store import resolve

    if missing := next((name for name in ("torch", "transformers") if find_spec(name) is None), None):
        raise ModuleNotFoundError(f"no module named {missing}", name=missing)  # before a download of 93 MB in vain
    resolve(model, quiet)  # shows its own progress if it has to fetch or convert
    with waiting(f"loading {model}", quiet):
        with uncollected(lasting=True):
            import_lean()
            from augury.engine.llm import LLM

        llm = LLM(model, **arguments)
        gc.freeze()  # it lives until exit, and scanning it in every garbage collection is wasted
        return llm


def with_installed(wanted: Mapping[str, Any] | None, model: str, quiet: bool = False) -> Any:
    """A speculative_config with this model's installed drafter filled in if it names none; any other unchanged."""
    from augury.config.installed import offered, with_drafter

    if wanted is None or not offered(wanted):
        return wanted
    from augury.config.facts import read_facts
    from augury.model.store import resolve

    return with_drafter(wanted, read_facts(str(resolve(model, quiet))))


def chat_prompt(llm: LLM, messages: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """A conversation as a prompt for the engine, through the chat template."""
    return {"prompt_token_ids": llm.tokenizer.chat(list(messages), add_generation_prompt=True)}


@contextmanager
def without_drafts(llm: LLM) -> Iterator[None]:
    """Decode without drafts on an engine built for speculation; use it only while no request is in progress."""
    runner = llm.engine.runner
    drafter, runner.drafter = runner.drafter, None
    try:
        yield
    finally:
        runner.drafter = drafter


def conditions(llm: LLM, params: SamplingParams) -> dict[str, Any]:
    """The conditions on which a figure depends besides the code."""
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
