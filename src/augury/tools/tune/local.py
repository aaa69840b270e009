"""Races on this machine: engines that share one copy of the model's weights and answer groups of prompts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from augury.config.errors import ConfigError
from augury.methods.registry import LOOK_UPS
from augury.tools.tune.families import PLAIN_ARM, Arm, ConfigFamily
from augury.tools.tune.race import GroupRun

if TYPE_CHECKING:
    from augury.engine.llm import LLM

Tokens = list[int]


class LocalRunner:
    """Answers groups of prompts with any arm."""

    def __init__(
        self,
        model: str,
        engine: dict[str, Any],
        families: Sequence[ConfigFamily],
        prompts: list[Tokens],
        params: dict[str, Any],
    ) -> None:
        """Load the plain engine; `build` and `answer_with` add the others."""
        from augury.engine.llm import LLM

        self._model, self._options, self._params = model, engine, params
        self.prompts = prompts
        self._families = {family.name: family for family in families}
        self._plain = LLM(model, **engine)
        self._engines: dict[Arm | str, LLM] = {}
        self._warm: set[tuple[Arm, int]] = set()

    def build(self, family: ConfigFamily, k: int) -> None:
        """Load the engine for an arm if it is not loaded yet; a ConfigError if that fails."""
        key = self._key(family, k)
        if key not in self._engines:
            spec = family.at(k if family.tree else max(family.ks))
            self._engines[key] = self._beside(spec)

    def answer(self, arm: Arm, group: Sequence[int]) -> GroupRun:
        """Answer a group's prompts in one batch; an arm's first group of a size is preceded by an untimed warm-up."""
        llm, wish = self._llm(arm)
        return self._timed(llm, group, wish, (arm, len(group)))

    def answer_with(self, spec: dict[str, Any] | None, group: Sequence[int]) -> GroupRun:
        """Answer a group's prompts with a complete configuration, for the final comparison; None: without drafts."""
        key = repr(spec)
        if spec is not None and key not in self._engines:
            self._engines[key] = self._beside(spec)
        llm = self._plain if spec is None else self._engines[key]
        return self._timed(llm, group, None, (Arm(key, 0), len(group)))

    def _key(self, family: ConfigFamily, k: int) -> Arm | str:
        return Arm(family.name, k) if family.tree else family.name

    def _llm(self, arm: Arm) -> tuple[LLM, int | None]:
        if arm == PLAIN_ARM:
            return self._plain, None
        family = self._families[arm.family]
        return self._engines[self._key(family, arm.k)], None if family.tree else arm.k

    def _beside(self, spec: dict[str, Any]) -> LLM:
        from augury.engine.llm import LLM

        if known := LOOK_UPS.get(str(spec.get("method"))):
            spec = {**known.forgets, **spec}  # prompts repeat in later rungs; remembering would distort
        return LLM(self._model, weights_of=self._plain, speculative_config=spec, **self._options)

    def _timed(self, llm: LLM, group: Sequence[int], wish: int | None, warm: tuple[Arm, int]) -> GroupRun:
        if warm not in self._warm:
            self._warm.add(warm)
            self._run(llm, group, wish, min(8, self._params["max_tokens"]))
        return self._run(llm, group, wish, self._params["max_tokens"])

    def _run(self, llm: LLM, group: Sequence[int], wish: int | None, max_tokens: int) -> GroupRun:
        from augury.config.sampling import SamplingParams
        from augury.observe.stats import SpecStats

        extra = None if wish is None else {"speculative": {"num_speculative_tokens": wish}}
        options = self._params | {"max_tokens": max_tokens, "extra_args": extra}
        # One seed per prompt: the same noise for every arm, so that all of them generate the same text.
        params = [SamplingParams(seed=number, **options) for number in group]
        llm.reset_prefix_cache()
        llm.engine.stats.spec = spec = SpecStats()
        begun = time.perf_counter()
        answers = llm.generate([{"prompt_token_ids": self.prompts[n]} for n in group], params, use_tqdm=False)
        seconds = time.perf_counter() - begun
        tokens = sum(len(answer.outputs[0].token_ids) for answer in answers)
        if not tokens:
            raise ConfigError("the model ends its answer at once; there is nothing to measure. Use other prompts.")
        return GroupRun(seconds, tokens, spec.num_drafts, spec.num_draft_tokens, spec.num_accepted_tokens)

    def conditions(self) -> dict[str, Any]:
        """The conditions of the figures besides the command line."""
        from augury.observe.machine import cpu_name
        from augury.tools.bench.screen import versions

        config = self._plain.config
        return {"device": config.device, "cpu": cpu_name(), "dtype": config.dtype, "versions": versions()}
