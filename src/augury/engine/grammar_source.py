"""What structured output a request asks for: as the source that it gives, and as the grammar that llguidance reads."""

from __future__ import annotations

import hashlib
import json
from typing import Any, NamedTuple

from augury.config.errors import ConfigError
from augury.config.structured import StructuredOutputsParams
from augury.engine.grammar_vocabulary import by_number

LARGE = 32 << 10  # bytes from which a source counts as a large one


class GrammarSource(NamedTuple):
    """A grammar as it is sent to its process, not parsed yet."""

    kind: str
    text: str
    options: dict[str, Any]

    @property
    def key(self) -> str:
        """The key under which equal sources are shared."""
        return hashlib.sha256(json.dumps(self).encode()).hexdigest()

    @property
    def large(self) -> bool:
        """Whether its size alone may make it slow to compile."""
        return len(self.text) > LARGE


def source_of(asked: StructuredOutputsParams) -> GrammarSource:
    """The grammar source of a request's parameters."""
    kind = asked.kind
    options: dict[str, Any] = {}
    if kind in ("json", "json_object"):
        options["whitespace_flexible"] = not asked.disable_any_whitespace
        if asked.whitespace_pattern is not None:
            options["whitespace_pattern"] = asked.whitespace_pattern
        try:
            return GrammarSource(kind, json.dumps(asked.schema), options)
        except RecursionError:
            raise ConfigError(f"structured_outputs.{kind} nests too deep.") from None
    if kind == "choice":
        return GrammarSource(kind, json.dumps(asked.choice), options)
    return GrammarSource(kind, getattr(asked, kind), options)


def readable(source: GrammarSource, controls: dict[str, int]) -> str:
    """The grammar in llguidance's own form; a ValueError or RecursionError if there is none."""
    from llguidance import LLMatcher, grammar_from, regex_to_lark

    if source.kind in ("json", "json_object"):
        options: Any = dict(source.options)
        return LLMatcher.grammar_from_json_schema(source.text, defaults=options)
    if source.kind == "choice":
        # One lexeme for all: as rules of their own, two thousand choices are more than the parser takes.
        return grammar_from("regex", "|".join(_verbatim(choice) for choice in json.loads(source.text)))
    if source.kind == "regex":
        # \d and \w are ASCII's, as ECMA says, in JSON schemas' patterns and here.
        return grammar_from("regex", regex_to_lark(source.text, use_ascii="dw"))
    return grammar_from("grammar", by_number(source.text, controls))


def _verbatim(text: str) -> str:
    """A regular expression for this text and no other."""
    return "".join("\\" + sign if sign in "\\.+*?()|[]{}^$#&-~" else sign for sign in text)
