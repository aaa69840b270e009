"""The assumptions behind an advice, and what would make it surer."""

from __future__ import annotations

from augury.config.versions import NEWEST, beyond_newest
from augury.methods.registry import METHODS
from augury.tools.advise.candidates import AdviceInputs, family_methods
from augury.tools.advise.curve import CostCurve
from augury.tools.advise.target import why_not_decoding
from augury.tools.advise.verdicts import UNKNOWN, JudgedMethod
from augury.tools.replay.prefix import BLOCK

FEW_ANSWERS = 100


def assumed(asked: AdviceInputs) -> tuple[str, ...]:
    """Everything the advice assumes."""
    found = [f"costs: {asked.cost.name}"]
    if asked.facts.directory is None and asked.shape is not None:
        held = asked.shape.stored_bytes / 1e9
        found.append(f"the target's shape is the table's for {asked.facts.name}: {held:.1f} GB of weights")
    found += [*_traffic(asked), *_engine(asked)]
    if not family_methods(asked.facts) and not why_not_decoding(asked.facts):
        found.append(
            f"no published head is known for model type {asked.facts.kind!r}: model-free, or a drafter of your own"
        )
    found.append("all requests of a load decode at once, none waits; drafts are chains, rejection is lossless")
    return tuple(found)


def _traffic(asked: AdviceInputs) -> list[str]:
    traffic = asked.traffic
    if traffic.requests:
        first = (
            f"traffic: {traffic.source}, {traffic.requests} answers, {traffic.kind}; prompts of "
            f"{traffic.prompt_tokens:.0f} tokens, {traffic.cached:.0%} of them from the prefix cache, answers of "
            f"{traffic.answer_tokens:.0f}"
        )
    else:
        first = (
            f"traffic: assumed; prompts of {traffic.prompt_tokens:.0f} tokens, answers of {traffic.answer_tokens:.0f}"
        )
    found = [first, *_prefixes(asked), *traffic.notes]
    if traffic.running is not None:
        seen = f"the server has {traffic.running:.0f} at once now, running or waiting"
        used = "; the table is for that load, half of it and twice: name your busy hours' with --concurrency"
        found.append(seen + (used if round(traffic.running) in asked.loads else "; the table is for other loads"))
    return found


def _prefixes(asked: AdviceInputs) -> list[str]:
    """What the prefix cache may find, by the trace; the table's figures do not depend on it."""
    share = asked.traffic.prefix_share
    if share is None:
        return []
    used = "" if asked.traffic.cached == share else f"; the server's own {asked.traffic.cached:.0%} is used"
    return [
        f"prefixes: {share:.0%} of the prompt tokens begin an earlier request of the trace, in blocks of {BLOCK}; an "
        f"unbounded prefix cache would find as many{used}. The table is of decoding alone, whatever the cache finds"
    ]


def _engine(asked: AdviceInputs) -> list[str]:
    found = []
    if asked.ours:
        found.append("engine: the configuration is for Augury's engine; for vLLM's rules name --vllm-version")
    elif asked.measured:
        found.append(f"engine: costs are those of Augury's engine; the configuration is for vLLM {asked.release_name}")
    else:
        found.append(
            "engine: vLLM with CUDA graphs up to 512 rows; K + 1 rows times requests beyond that run much slower"
        )
    found.append(
        f"nothing beyond {asked.loads[-1]} at once was looked at, and the last K continues there: name your "
        "max_num_seqs in --concurrency if it is larger"
    )
    if not asked.ours and beyond_newest(asked.release):
        found.append(f"vLLM {asked.release_name} is newer than what is known: the rules are those of {NEWEST}")
    if isinstance(asked.cost, CostCurve) and asked.loads[-1] > asked.cost.axes[1][-1]:
        most = asked.cost.axes[1][-1]
        found.append(
            f"the curve ends at {most} at once: beyond that only rows are counted; measure with a larger --batch"
        )
    return found


def surer(asked: AdviceInputs, lines: list[JudgedMethod]) -> tuple[str, ...]:
    """What to measure to be surer of the advice."""
    found = []
    if asked.recorded is None:
        free = [line for line in lines if line.by_load and METHODS[line.candidate.method].weights == "none"]
        wide = ", ".join(
            f"{line.candidate.method} {line.by_load[0].decode.low:.1f} to {line.by_load[0].decode.high:.1f}"
            for line in free
            if not line.candidate.yours and line.by_load[0].tokens
        )
        told = f" (now a guess: {wide})" if wide else ""
        found.append(f"give --trace with a day's requests and answers: n-gram and suffix are then replayed{told}")
    elif asked.traffic.requests < FEW_ANSWERS:
        found.append(f"{asked.traffic.requests} answers are few: the intervals shrink with the root of their number")
    if not asked.measured:
        found.append(
            "a roofline does not model your engine: compare a step time of your server with plain_step_ms in --json"
        )
    guessed = [line.candidate.method for line in lines if not line.candidate.yours and line.verdict != UNKNOWN]
    if guessed:
        found.append(f"the acceptance of {', '.join(guessed)} is from others: measure yours, then give --profile")
    return tuple(found)
