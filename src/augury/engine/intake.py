"""Turns a prompt's tokens and sampling parameters into checked requests for the engine."""

from __future__ import annotations

import threading

from augury.config.engine import EngineConfig
from augury.config.errors import ConfigError
from augury.config.per_request import SpecOptions, read_spec_options
from augury.config.prediction import KEY as PREDICTION
from augury.config.prediction import check_prediction, read_prediction
from augury.config.sampling import SamplingParams
from augury.engine.edits import LogitEdits
from augury.engine.engine import Engine
from augury.engine.grammar import Grammar, Grammars
from augury.engine.loras import LoadedLora
from augury.engine.request import Request
from augury.engine.text import TextStream
from augury.index.prediction import PredictedText, PredictionFollower
from augury.model.tokenizer import Tokenizer


class Intake:
    """Makes requests, for the offline interface and the server alike, and numbers them in order of arrival."""

    def __init__(self, config: EngineConfig, engine: Engine, tokenizer: Tokenizer) -> None:
        self.config = config
        self.engine = engine
        self.tokenizer = tokenizer
        self.arrivals = 0
        self._grammars: Grammars | None = None
        self._making = threading.Lock()
        self._last_words: tuple[tuple[str, ...], list[list[int]]] = (), []

    def requests(
        self, name: str, tokens: list[int], params: SamplingParams, lora: LoadedLora | None = None
    ) -> list[Request]:
        """The n requests of one prompt, or a ConfigError that says what is wrong with it."""
        made = self.unstructured(name, tokens, params, lora)
        self.structure(made, self.compile(params))
        return made

    def unstructured(
        self, name: str, tokens: list[int], params: SamplingParams, lora: LoadedLora | None = None
    ) -> list[Request]:
        """The same without their grammars, for callers that compile these elsewhere."""
        limit, vocab = self.config.max_model_len or 0, self.engine.target.vocab_size
        if not tokens:
            raise ConfigError("the prompt is empty; give it at least one token.")
        if len(tokens) >= limit:
            raise ConfigError(
                f"the prompt has {len(tokens)} tokens but max_model_len is {limit}, which must also hold the answer; "
                "shorten the prompt or raise max_model_len."
            )
        wrong = next((t for t in tokens if not 0 <= t < vocab), None)
        if wrong is not None:
            raise ConfigError(f"token id {wrong} is not in the vocabulary; ids go from 0 to {vocab - 1}.")
        params.check_vocabulary(vocab)
        if self.engine.saver:
            self.engine.saver.check(params)
        spec_options = read_spec_options(params.extra_args, self.config.speculative_config)
        names = [f"{name}-{i}" if params.n > 1 else name for i in range(params.n)]
        edits = LogitEdits.of(params, self._words(params))  # once for all n
        made = [self._request(names[i], tokens, params, i, spec_options, edits) for i in range(params.n)]
        if (expected := self._expected(params)) is not None:
            for request in made:
                request.prediction = PredictionFollower(expected)
        if lora is not None:
            for request in made:
                request.lora = lora
                lora.users.add(request)
        return made

    def _expected(self, params: SamplingParams) -> PredictedText | None:
        """The output that the client predicts, as tokens; None if it predicts nothing."""
        given = read_prediction(params.extra_args)
        if given is None:
            return None
        if isinstance(given, str):
            self._need_tokenizer(PREDICTION)
            given = self.tokenizer.encode(given, special=False)
        check_prediction(given, self.config.max_model_len or 0, self.engine.target.vocab_size)
        return PredictedText(given) if given else None

    def _words(self, params: SamplingParams) -> list[list[int]]:
        """The tokens of bad words; the last list's are cached, as the prompts of one request share it."""
        words = tuple(params.bad_words or ())
        if words != self._last_words[0]:
            self._last_words = words, self.tokenizer.bad_word_ids(list(words))
        return self._last_words[1]

    def compile(self, params: SamplingParams) -> Grammar | None:
        """The grammar that requests with these parameters begin with, if any."""
        return None if params.structured_outputs is None else self.grammars.start(params)

    @property
    def grammars(self) -> Grammars:
        """The compiler of grammars, made for the first request that needs it, because that takes a moment."""
        self._need_tokenizer("structured_outputs")
        with self._making:
            if self._grammars is None:
                self._grammars = Grammars(self.tokenizer, self.engine.target.vocab_size)
        return self._grammars

    @property
    def grammar_counts(self) -> dict[str, int]:
        """Number of compilations so far, by outcome."""
        return {} if self._grammars is None else dict(self._grammars.pool.counts)

    def structure(self, requests: list[Request], grammar: Grammar | None) -> None:
        """Give each request its own place in a grammar."""
        if grammar is not None:
            for request in requests:
                request.grammar = grammar.fork()

    def _need_tokenizer(self, name: str) -> None:
        if self.tokenizer.inner is None:
            raise ConfigError(f"{name} needs a tokenizer, which skip_tokenizer_init=True leaves out; drop one of them.")

    def _request(
        self,
        name: str,
        tokens: list[int],
        params: SamplingParams,
        index: int,
        spec_options: SpecOptions,
        edits: LogitEdits,
    ) -> Request:
        self.arrivals += 1
        stop_ids = set(params.stop_token_ids or ()) | (set() if params.ignore_eos else self.tokenizer.eos_ids)
        decode = self.tokenizer.decoder(params.skip_special_tokens)
        stops = list(params.stop or ())
        if stops:
            self._need_tokenizer("stop")
        speaks = params.detokenize and self.tokenizer.inner is not None
        # Without a seed a request gets its own from the engine's; with one, answer i of n gets seed + i, as in vLLM.
        seed = params.seed if params.seed is not None else hash((self.config.seed, self.arrivals)) & (2**62 - 1)
        most = self.config.max_model_len or 0
        return Request(
            id=name,
            arrival=self.arrivals,
            prompt_len=len(tokens),
            tokens=list(tokens),
            params=params,
            seed=(seed + index + 2**63) % 2**64 - 2**63,  # wrapped to a signed 64-bit number
            stop_ids=frozenset(stop_ids),
            max_len=min(most, len(tokens) + params.max_tokens) if params.max_tokens else most,
            text=TextStream(decode, tokens, stops, params.include_stop_str_in_output) if speaks else None,
            prompt=self.arrivals - index,  # the first one's arrival
            index=index,
            spec_options=spec_options,
            edits=edits,
        )
