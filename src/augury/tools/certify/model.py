"""Plain decoding against speculation on our own engine.

Plain decoding runs on a second LLM without `speculative_config`, as a user has it who does not speculate. One engine
with its drafter removed would share its KV cache, its prefix cache and, under the rejection rules, its sampler with the
speculation that it is to judge.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from augury.config.errors import ConfigError
from augury.config.sampling import SamplingParams
from augury.engine.llm import LLM
from augury.tools.certify.law import possible
from augury.tools.certify.places import ALPHA, TestedPlace, Text, beginnings, judge
from augury.tools.certify.report import (
    ComparisonReport,
    Difference,
    Equality,
    SuiteProgress,
    Unwatched,
    first_difference,
)
from augury.tools.certify.settings import GREEDY, SETTINGS, SamplingSetting
from augury.tools.certify.statistics import CountCell, against_law
from augury.tools.certify.watch import SeenToken, tie, watching
from augury.verify.rules import RULES

Asked = str | list[dict[str, Any]]  # a text, or a conversation
FURTHER = 2  # sampled answers have this many tokens more than a draft: one before it and the bonus token after it
DEEPEST = 8
UNSEEN = "it did not recur when the run was repeated to capture scores"
LAW_PROMPTS = 2  # prompts whose answers are sampled many times


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """What to compare, and how much of it."""

    prompts: Sequence[Asked]
    settings: Sequence[SamplingSetting] = SETTINGS
    max_tokens: int = 64
    seeds: int = 2
    samples: int = 2000
    alpha: float = ALPHA


def certify_model(plain: LLM, fast: LLM, plan: ModelPlan, progress: SuiteProgress | None = None) -> ComparisonReport:
    """Compare an engine that speculates with one that does not."""
    begun = time.perf_counter()
    return _Comparison(plain, fast, plan, progress or Unwatched()).run(begun)


@dataclass(slots=True)
class _Comparison:
    plain: LLM
    fast: LLM
    plan: ModelPlan
    progress: SuiteProgress
    tokens: list[list[int]] = field(default_factory=list)

    @property
    def rule(self) -> str:
        """The acceptance rule that the speculating engine runs."""
        config = self.fast.config.speculative_config
        if config is None:
            raise ConfigError("there is no speculation to certify; give a speculative_config (-sc JSON).")
        return config.rule

    def run(self, begun: float) -> ComparisonReport:
        coupled, config = self.rule == "coupled", self.fast.config.speculative_config
        assert config is not None
        self.tokens = [prompt_tokens(self.plain, asked) for asked in self.plan.prompts]
        report = ComparisonReport(f"{config.method} under `{self.rule}` against plain decoding", self.conditions())
        report.equalities = [self.equality(s) for s in self.plan.settings if coupled or s.params["temperature"] == 0]
        if not coupled:
            sampled = [setting for setting in self.plan.settings if setting.params["temperature"] > 0]
            places = [place for setting in sampled for place in self.places(setting)]
            report.law = judge(places, self.plan.alpha)
        report.notes = self.notes(report.law)
        spec = self.fast.engine.stats.spec
        report.drafted = spec.num_drafts > 0
        report.acceptance = {
            "num_drafts": spec.num_drafts,
            "num_draft_tokens": spec.num_draft_tokens,
            "num_accepted_tokens": spec.num_accepted_tokens,
            "acceptance_rate": round(spec.acceptance_rate, 4),
            "acceptance_length": round(spec.acceptance_length, 4),
            "per_position": [a / d for a, d in zip(spec.accepted_per_pos, spec.drafted_per_pos, strict=True)],
        }
        report.seconds = time.perf_counter() - begun
        return report

    # --- token for token -------------------------------------------------------------------------------------------

    def equality(self, setting: SamplingSetting) -> Equality:
        """Compare the answers for every prompt and seed; each first difference is run again to see its scores."""
        seeds = self.plan.seeds if setting.params["temperature"] > 0 else 1
        asked = [(p, p * seeds + s) for p in range(len(self.tokens)) for s in range(seeds)]
        answers = {}
        for llm, name in ((self.plain, "plain"), (self.fast, "speculating")):
            self.progress.begin(f"{setting.name}: {name}", len(asked))
            answers[name] = self.answers(llm, setting, asked)
        pairs = list(zip(asked, answers["plain"], answers["speculating"], strict=True))
        parted = {seed: at for (_, seed), a, b in pairs if (at := first_difference(a, b)) is not None}
        found: list[Difference] = []
        if parted:
            views = [self.look_again(llm, setting, asked, parted) for llm in (self.plain, self.fast)]
            for (prompt, seed), a, b in pairs:
                if seed in parted:
                    found.append(self.difference(setting, prompt, seed, (a, b), parted[seed], views))
        return Equality(setting.name, len(asked), sum(len(a) for _, a, _ in pairs), found)

    def answers(self, llm: LLM, setting: SamplingSetting, asked: list[tuple[int, int]]) -> list[list[int]]:
        """Token ids of every (prompt, seed); the prefix cache starts empty, so that a second run repeats the first."""
        llm.reset_prefix_cache()
        every = [self.params(setting, seed=seed, max_tokens=self.plan.max_tokens) for _, seed in asked]
        outputs = llm.generate([self.tokens[p] for p, _ in asked], every, use_tqdm=lambda **_: _Steps(self.progress))
        return [output.outputs[0].token_ids for output in outputs]

    def look_again(
        self, llm: LLM, setting: SamplingSetting, asked: list[tuple[int, int]], parted: dict[int, int]
    ) -> dict[int, SeenToken]:
        """Run the same requests in the same batch again, and capture the scores where the answers first differ."""
        self.progress.begin(f"{setting.name}: the scores where answers part", len(asked))
        prompts = {seed: prompt for prompt, seed in asked}
        wanted = {seed: len(self.tokens[prompts[seed]]) + at for seed, at in parted.items()}
        with watching(llm.engine, wanted) as seen:
            self.answers(llm, setting, asked)
        return seen

    def difference(
        self,
        setting: SamplingSetting,
        prompt: int,
        seed: int,
        runs: tuple[list[int], list[int]],
        at: int,
        views: list[dict[int, SeenToken]],
    ) -> Difference:
        """A report on the first token that differs."""
        plain, fast = (run[at] if at < len(run) else None for run in runs)
        texts = ["(end)" if token is None else self.text([token]) for token in (plain, fast)]
        unseen = Difference(
            setting.name, prompt, seed, at, texts[0], texts[1], None, None, None, None, 0.0, UNSEEN, False
        )
        if plain is None or fast is None or not all(seed in view for view in views):
            return unseen
        behind = [view[seed] for view in views]
        if [seen.token for seen in behind] != [plain, fast]:
            return unseen
        found = tie(behind[0], behind[1], (plain, fast), dtype_of(self.plain))
        return unseen._replace(
            plain_run=behind[0].of(plain, fast),
            drafted_run=behind[1].of(plain, fast),
            gap=found.gap,
            plain_id=plain,
            drafted_id=fast,
            apart=found.apart,
            bound=found.bound,
            bound_is=found.bound_is,
            near_tie=found.near,
        )

    # --- the law ---------------------------------------------------------------------------------------------------

    def places(self, setting: SamplingSetting) -> list[TestedPlace]:
        """Compare sampled answers with the plain law, after their most frequent beginnings."""
        found: list[TestedPlace] = []
        for number, prompt in enumerate(self.tokens[:LAW_PROMPTS]):
            texts = self.sampled(setting, number, prompt)
            common = beginnings(texts, self.depth)
            laws = self.laws(setting, prompt, [ids(beginning) for beginning, _ in common])
            for (beginning, counts), law in zip(common, laws, strict=True):
                cells, fit = against_law(counts, law)
                named = [CountCell(None if c.label is None else self.name(c.label), *c[1:]) for c in cells]
                outside = sum(count for token, count in counts.items() if token not in law)
                found.append(
                    TestedPlace(setting.name, number, self.text(ids(beginning)), len(beginning), named, fit, outside)
                )
        return found

    @property
    def depth(self) -> int:
        """Tokens of a sampled answer."""
        config = self.fast.config.speculative_config
        return min(DEEPEST, (config.num_speculative_tokens if config else 0) + FURTHER, self.plan.max_tokens)

    def sampled(self, setting: SamplingSetting, number: int, prompt: list[int]) -> list[list[int]]:
        """Many answers to one prompt, each with a seed of its own."""
        self.progress.begin(f"{setting.name}: sampling prompt {number + 1}", self.plan.samples)
        # No two samples share their noise: the test statistics are added up, so they must be independent.
        place = self.plan.settings.index(setting) * LAW_PROMPTS + number
        params = self.params(setting, n=self.plan.samples, seed=1 + place * self.plan.samples, max_tokens=self.depth)
        output = self.fast.generate([prompt], params, use_tqdm=lambda **_: _Steps(self.progress))[0]
        return [answer.token_ids for answer in output.outputs]

    def laws(self, setting: SamplingSetting, prompt: list[int], beginnings: list[list[int]]) -> list[dict[int, float]]:
        """The plain law after each beginning, from the logits of the engine that does not speculate."""
        self.progress.begin(f"{setting.name}: the plain law", len(beginnings))
        prompts = [prompt + beginning for beginning in beginnings]
        every = [self.params(GREEDY, seed=i, max_tokens=1) for i in range(len(prompts))]
        with watching(self.plain.engine, {i: len(tokens) for i, tokens in enumerate(prompts)}) as seen:
            self.plain.generate(prompts, every, use_tqdm=lambda **_: _Steps(self.progress))
        params = self.params(setting, max_tokens=1)
        return [possible(seen[i].logits.numpy(), params, prompt, begun) for i, begun in enumerate(beginnings)]

    # --- the rest --------------------------------------------------------------------------------------------------

    def params(self, setting: SamplingSetting, **more: Any) -> SamplingParams:
        """Sampling parameters; end-of-text is ignored, since it would only shorten the comparison."""
        return SamplingParams(**setting.params, **more, ignore_eos=True, detokenize=False)

    def text(self, tokens: list[int]) -> str:
        """Tokens as text."""
        return self.plain.tokenizer.decoder(skip_special=False)(tokens)

    def name(self, token: int) -> str:
        """A token as text, or its id if it is only part of a character."""
        text = self.text([token])
        return f"token {token}" if "\ufffd" in text else text

    def notes(self, law: Any) -> list[str]:
        """Remarks for the reader of the report."""
        found = []
        if self.rule == "coupled":
            found.append("Same seed, same text: where every token is equal the law is too, so none was tested.")
        elif not RULES[self.rule].lossless:
            found.append(f"LOSSY: the rule `{self.rule}` does not promise the plain law; a difference is expected.")
        if law is not None and not law.places:
            found.append("Too few samples for a test of the law, so nothing was certified; raise --samples.")
        if not self.fast.engine.stats.spec.num_drafts:
            found.append("Nothing was drafted, so nothing was certified; give prompts that the drafter can work with.")
        return found

    def conditions(self) -> dict[str, Any]:
        """What the figures depend on."""
        config = self.fast.config.speculative_config
        assert config is not None
        found = {
            "model": self.fast.config.model,
            "dtype": str(dtype_of(self.fast)).removeprefix("torch."),
            "device": str(self.fast.engine.target.device),
            "torch": torch.__version__,
            "speculative_config": config.to_dict(),
            "rule": self.rule,
            "batch": self.fast.config.max_num_seqs,
            "prompts": len(self.tokens),
            "max_tokens": self.plan.max_tokens,
            "seeds": self.plan.seeds,
            "settings": {setting.name: setting.params for setting in self.plan.settings},
        }
        if self.rule != "coupled":
            found |= {
                "samples": self.plan.samples,
                "prompts_sampled": min(LAW_PROMPTS, len(self.tokens)),
                "sampled_tokens_each": self.depth,
            }
        return found


class _Steps:
    """A stand-in for tqdm in LLM.generate, which reports to `progress`."""

    postfix = ""

    def __init__(self, progress: SuiteProgress) -> None:
        self.update, self._progress = progress.step, progress

    def close(self) -> None:
        """Nothing to close."""


def ids(text: Text) -> list[int]:
    """Token ids of a beginning."""
    return [token for token in text if isinstance(token, int)]


def prompt_tokens(llm: LLM, asked: Asked) -> list[int]:
    """Token ids of a prompt, through the chat template if the model has one."""
    if isinstance(asked, str) and not llm.tokenizer.inner.chat_template:
        return llm.tokenizer.encode(asked)
    messages = [{"role": "user", "content": asked}] if isinstance(asked, str) else asked
    return llm.tokenizer.chat(messages, add_generation_prompt=True)


def dtype_of(llm: LLM) -> torch.dtype:
    """The dtype of an engine's target."""
    target = llm.engine.target
    found: torch.dtype = getattr(target, "dtype", target.cache_dtype)
    return found
