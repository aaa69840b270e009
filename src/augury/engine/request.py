"""The host's record of one running request."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from augury.config.per_request import SpecOptions
from augury.config.sampling import SamplingParams
from augury.engine.edits import NOTHING, LogitEdits
from augury.engine.grammar import Grammar
from augury.engine.loras import LoadedLora
from augury.engine.text import TextStream
from augury.index.prediction import PredictionFollower
from augury.observe.stats import LORA, PROBE, ByDrafter, Parts, SpecStats


class Logprob(NamedTuple):
    """A token's log-probability under the raw logits, by vLLM's names."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


LogprobDict = dict[int, Logprob]


@dataclass(slots=True, eq=False, weakref_slot=True)
class Request:
    """Everything the host knows of a request; the device's side is a line of SlotState."""

    id: str
    arrival: int  # ordinal; the lowest goes first
    prompt_len: int
    tokens: list[int]  # prompt and output
    params: SamplingParams
    seed: int
    stop_ids: frozenset[int]  # tokens that end the output
    max_len: int  # the request ends when it has this many tokens
    text: TextStream | None  # None: no text asked for
    prompt: int = 0  # a number that the n answers to one prompt have in common
    index: int = 0  # which of them it is
    spec_options: SpecOptions = field(default_factory=SpecOptions)  # its own options for speculation
    grammar: Grammar | None = None  # what its text must match
    edits: LogitEdits = NOTHING  # how it changes logits, shared by the n answers
    prediction: PredictionFollower | None = None  # the output its client predicts, and the answer's place in it
    lora: LoadedLora | None = None  # the adapter that it uses
    client: tuple[str, str] = ("", "")  # for taking turns: a client's key, and one of its HTTP requests

    # set by the scheduler
    slot: int = -1
    blocks: list[int] = field(default_factory=list)
    keys: list[bytes] = field(default_factory=list)  # names of the full blocks whose KV is computed
    tabled: int = 0  # blocks already written to the slot's block table
    long: bool = False  # its keys are rotated as those of a text beyond the target's switch_length
    decoding: bool = False  # the last pass launched with it draws a token; False while it reads its prompt
    computed: int = 0  # tokens whose keys and values are in the cache
    sent: int = 0  # those, and tokens of passes in flight; a draw in flight adds more than the host knows
    in_flight: int = 0  # passes in flight that include it
    longest: int = 0  # the most tokens it may have when they have landed
    epoch: int = 0  # grows when it leaves its slot: passes launched before that no longer count
    allowed: int = 0  # nodes the last pass launched may draft
    draft_nodes: int = 0  # nodes of the draft pending in the slot
    draft_depth: int = 0  # and how many tokens of it could be accepted
    draft_parts: Parts = ()  # which drafters made them, in order; empty where one drafter makes all
    cached_tokens: int = 0  # prompt tokens found in the prefix cache when first admitted
    preemptions: int = 0
    added_at: float = 0.0  # on time.perf_counter(): when it was queued,
    seated_at: float = 0.0  # and when it first got a slot

    # set by the engine as tokens come
    from_draft: list[bool] = field(default_factory=list)  # for each output token: was it an accepted draft?
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: list[LogprobDict] = field(default_factory=list)
    prompt_logprobs: list[LogprobDict | None] = field(default_factory=list)
    cumulative_logprob: float = 0.0
    waits: bool = False  # its grammar was too slow for a pass that had begun: its next passes wait for the grammar
    spec: SpecStats = field(default_factory=SpecStats)
    spec_steps: list[tuple[int, int]] = field(default_factory=list)  # drafted and accepted, for each step with a draft
    by_drafter: ByDrafter = field(default_factory=dict)  # drafted and accepted tokens, where several draft

    scores_prompt: bool = field(init=False)  # its prompt's log-probabilities are recorded: the first of n answers' job
    watched: bool = field(init=False)  # it asks for log-probabilities or a trace

    def __post_init__(self) -> None:
        self.scores_prompt = self.params.prompt_logprobs is not None and self.index == 0
        self.watched = self.params.logprobs is not None or self.scores_prompt or self.spec_options.trace

    @property
    def length(self) -> int:
        """Tokens known so far."""
        return len(self.tokens)

    @property
    def pending(self) -> int:
        """Known tokens that no pass has run or is running: 1 while decoding, more while reading the prompt."""
        return len(self.tokens) - self.sent

    @property
    def draws_in_flight(self) -> bool:
        """Whether a pass in flight draws for it, so that only the device knows where it continues."""
        return self.in_flight > 0 and self.decoding

    @property
    def needs_host(self) -> bool:
        """Whether the host must see each pass before the next: for scores, a trace, a prediction or a grammar."""
        return self.watched or self.prediction is not None or self.waits

    @property
    def follows(self) -> bool:
        """Whether its text follows its client's prediction so well that no drafter need draft."""
        return self.prediction is not None and self.prediction.sure

    @property
    def tenant(self) -> str:
        """Its tenant, from `cache_salt`: drafts learnt from one tenant's answers are never shown to another."""
        return str((self.params.extra_args or {}).get("cache_salt", ""))

    @property
    def tags(self) -> list[str]:
        """Names under which its drafts are counted separately, besides in the totals."""
        tags = [PROBE] if (self.params.extra_args or {}).get(PROBE) else []
        return tags if self.lora is None else [*tags, LORA + self.lora.name]

    @property
    def output(self) -> list[int]:
        """Generated tokens."""
        return self.tokens[self.prompt_len :]

    def accept(self, emitted: list[int], accepted: int) -> int:
        """Append what a step emitted up to the first reason to stop; returns how many tokens were kept."""
        if self._goes_on(emitted):
            self.tokens += emitted
            self.from_draft += [i < accepted for i in range(len(emitted))]
            return len(emitted)
        for i, token in enumerate(emitted):
            self.tokens.append(token)
            self.from_draft.append(i < accepted)
            if self._ended_by(token):
                return i + 1
        return len(emitted)

    def _goes_on(self, emitted: list[int]) -> bool:
        """Whether no token can end the request or make text, so that they need not be looked at one by one."""
        bare = self.text is None and self.grammar is None
        return bare and len(self.tokens) + len(emitted) < self.max_len and self.stop_ids.isdisjoint(emitted)

    def end_by_grammar(self) -> None:
        """End a request whose grammar has no next token: the answer is complete, or parsing ran into its limits."""
        error = self.grammar.error if self.grammar else None
        self.finish_reason = "stop" if error is None else "error"
        self.stop_reason = error and f"structured_outputs: {error}"

    def _ended_by(self, token: int) -> bool:
        generated = len(self.tokens) - self.prompt_len
        may_stop = generated > self.params.min_tokens
        stopped = may_stop and token in self.stop_ids
        cut = None
        # A stop token adds no text of its own, as in vLLM, unless the user asked to see it.
        if self.text and not (stopped and not self.params.include_stop_str_in_output):
            cut = self.text.push(token, watch=may_stop)
        complete = self.grammar is not None and self.grammar.consume(token)
        if stopped:
            self.finish_reason = "stop"
            self.stop_reason = token if token in (self.params.stop_token_ids or ()) else None
        elif cut is not None:
            self.finish_reason, self.stop_reason = "stop", cut
        elif complete:  # whatever min_tokens is, the grammar allows nothing more
            self.end_by_grammar()
        elif len(self.tokens) >= self.max_len:
            self.finish_reason = "length"
        if self.finish_reason and self.text and cut is None:
            self.text.flush()
        return self.finish_reason is not None
