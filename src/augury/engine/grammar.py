"""Structured output: which tokens a request's grammar allows, behind its text and behind every drafted node.

llguidance does the parsing. The state lives here, on the host, and moves with the tokens a request keeps: what is run
again after a preemption, or found in the prefix cache, is not read again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from augury.config.errors import ConfigError
from augury.config.sampling import SamplingParams
from augury.config.structured import StructuredOutputsParams
from augury.model.tokenizer import Tokenizer

WORD_BITS = 32
SOURCES_KEPT = 256
ROOT = -1


class Grammar:
    """One request's place in its grammar, and the masks of the next pass."""

    def __init__(self, matcher: Any, width: int, barred: np.ndarray | None) -> None:
        self._matcher, self._width, self.barred = matcher, width, barred
        self.masks = self._mask(matcher)[None]  # int32 [1 + nodes, W]: behind the text, behind each pending node

    def fork(self, barred: np.ndarray | None) -> Grammar:
        """Another request's, from the same place; `barred` are words of tokens that it wants only as a last choice."""
        return Grammar(self._matcher.deep_copy(), self._width, barred)

    @property
    def error(self) -> str | None:
        """Why the grammar can go no further, in one line: it asked for more work than its limits allow."""
        return _one_line(self._matcher.get_error()) if self._matcher.is_error() else None

    def consume(self, token: int) -> bool:
        """Read a token the request has kept; whether nothing may follow it."""
        return not self._matcher.consume_token(token) or bool(self._matcher.is_stopped())

    def look_ahead(self, tokens: Sequence[int], parents: Sequence[int]) -> list[int]:
        """The nodes of a draft that the grammar allows, in order; afterwards `masks` is for the text and for them.

        A node goes with the whole path to it, so what hangs below a forbidden node goes too.
        """
        found = {ROOT: self._mask(self._matcher)}
        if tokens:
            kids: dict[int, list[int]] = {}
            for node, parent in enumerate(parents):
                kids.setdefault(parent, []).append(node)
            # On a copy: a guess that drives the parser over its limits must not end the request.
            self._visit(self._matcher.deep_copy(), ROOT, kids, tokens, found)
        kept = sorted(found)
        self.masks = np.stack([found[node] for node in kept])
        return kept[1:]

    def _visit(
        self, scout: Any, node: int, kids: dict[int, list[int]], tokens: Sequence[int], found: dict[int, np.ndarray]
    ) -> None:
        """Add the allowed nodes below `node`, where the scout stands, and come back to it."""
        if scout.is_stopped():
            return
        for child in kids.get(node, ()):
            if _allows(found[node], tokens[child]) and scout.consume_token(tokens[child]):
                mask = self._mask(scout)
                if scout.is_error():
                    return
                found[child] = mask
                self._visit(scout, child, kids, tokens, found)
                scout.rollback(1)

    def _mask(self, matcher: Any) -> np.ndarray:
        mask = np.frombuffer(matcher.compute_bitmask(), dtype=np.int32)[: self._width]
        if self.barred is None:
            return mask
        rest = mask & ~self.barred
        return rest if rest.any() else mask


class Grammars:
    """Compiles what requests ask for, for one vocabulary; a source seen before is not compiled again."""

    def __init__(self, tokenizer: Tokenizer, vocab: int) -> None:
        self._tokenizer, self._width = _parser_tokenizer(tokenizer, vocab), -(-vocab // WORD_BITS)
        self._ends = np.zeros(self._width, dtype=np.int32)
        for token in self._tokenizer.eos_tokens:
            self._ends.view(np.uint32)[token // WORD_BITS] |= np.uint32(1 << token % WORD_BITS)
        self._compiled = lru_cache(SOURCES_KEPT)(self._compile)

    def start(self, params: SamplingParams) -> Grammar | None:
        """A request's grammar at its beginning, or None if it asks for none; a ConfigError if it cannot be used."""
        asked = params.structured_outputs
        if asked is None:
            return None
        # Who ignores the end of text reads on for as long as the grammar has more to say.
        return self._compiled(*_source(asked)).fork(self._ends if params.ignore_eos else None)

    def _compile(self, kind: str, source: str) -> Grammar:
        from llguidance import LLMatcher, LLParserLimits

        limits = LLParserLimits(verbose_errors=False)
        grammar = Grammar(LLMatcher(self._tokenizer, source, log_level=0, limits=limits), self._width, None)
        if grammar.error is not None:
            raise ConfigError(f"structured_outputs.{kind} cannot be used: {grammar.error}")
        return grammar


def _source(asked: StructuredOutputsParams) -> tuple[str, str]:
    """The kind asked for and its grammar in llguidance's own form."""
    from llguidance import LLMatcher, grammar_from

    kind = asked.kind
    if kind in ("json", "json_object"):
        options: Any = {"whitespace_flexible": not asked.disable_any_whitespace}
        if asked.whitespace_pattern is not None:
            options["whitespace_pattern"] = asked.whitespace_pattern
        return kind, LLMatcher.grammar_from_json_schema(json.dumps(asked.schema), defaults=options)
    if kind == "choice":
        # One word to the lexer: as rules of their own, two thousand choices are more than the parser takes.
        return kind, grammar_from("regex", "|".join(_verbatim(choice) for choice in asked.choice or ()))
    try:
        return kind, grammar_from("regex" if kind == "regex" else "grammar", getattr(asked, kind))
    except ValueError as error:
        raise ConfigError(f"structured_outputs.{kind} cannot be used: {_one_line(str(error))}") from None


def _parser_tokenizer(tokenizer: Tokenizer, vocab: int) -> Any:
    """llguidance's view of the vocabulary; rows of the model that are nobody's token are never allowed."""
    try:
        from llguidance.hf import from_tokenizer
    except ImportError:
        raise ConfigError("structured_outputs needs the package llguidance: pip install 'augury[engine]'.") from None
    ends = sorted(token for token in tokenizer.eos_ids if token < len(tokenizer))
    if not ends:
        raise ConfigError("structured_outputs needs a tokenizer with an end-of-text token, and this model names none.")
    try:
        return from_tokenizer(tokenizer.inner, n_vocab=max(vocab, len(tokenizer)), eos_token=ends)
    except ValueError as error:
        raise ConfigError(f"structured_outputs cannot read this model's tokenizer: {error}") from None


def _verbatim(text: str) -> str:
    """A regular expression for this text and no other."""
    return "".join("\\" + sign if sign in "\\.+*?()|[]{}^$#&-~" else sign for sign in text)


def _allows(mask: np.ndarray, token: int) -> bool:
    return 0 <= token < len(mask) * WORD_BITS and bool(int(mask[token // WORD_BITS]) >> token % WORD_BITS & 1)


def _one_line(message: str) -> str:
    return " ".join(message.split())
