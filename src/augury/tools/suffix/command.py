"""`augury suffix`: suffix caches built before the first request."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from augury.config.errors import ConfigError
from augury.tools.replay.command import TenantField, TokenizerOption, load_cache
from augury.tools.shared.options import Json

if TYPE_CHECKING:
    from augury.index.suffix import SuffixCache
    from augury.tools.replay.tokens import Encoder

PATTERN = 8  # tokens of a repeated pattern


def build(
    corpus: Annotated[
        list[Path], typer.Argument(help="Traces, whose responses are used, or texts, one document a line.")
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="The file to write.")],
    tokenizer: TokenizerOption = "default",
    max_depth: Annotated[int, typer.Option(min=1, max=32_767, help="Longest match and draft together.")] = 24,
    max_bytes: Annotated[
        int | None, typer.Option(min=1, help="Maximum memory; the oldest responses are dropped first.")
    ] = None,
    tenant: Annotated[str, typer.Option(help="The tenant the cache belongs to.")] = "",
    tenant_field: TenantField = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Stop after this many conversations.")] = None,
    as_json: Json = False,
) -> None:
    """Fill a suffix cache from a corpus and save it, for an engine to start with."""
    from augury.index.suffix import SuffixCache
    from augury.tools.replay.prefix import decoded_once
    from augury.tools.replay.screen import progress, warn
    from augury.tools.replay.tokens import encoder, scripts
    from augury.tools.replay.traces import TraceReader

    if not output.parent.is_dir():
        raise ConfigError(f"-o {output}: there is no directory {output.parent}.")
    if tenant and tenant_field:
        raise ConfigError("--tenant and --tenant-field say whose cache it is in two ways; keep one.")
    reader, words = TraceReader(corpus, tenant_field, limit, plain=True), encoder(tokenizer)
    cache, counts = SuffixCache(max_depth, -1, max_bytes), Counter[str]()
    with progress(reader) as tick:
        for script in decoded_once(scripts(reader, words)):
            # A record without a response, as in a vLLM log, is indexed as a plain text.
            spans = script.spans or [(0, len(script.text))]
            counts["prompts_indexed"] += not script.spans
            for text in (script.text[start:stop] for start, stop in spans if stop > start):
                counts["responses_seen"] += 1
                counts["tokens_seen"] += len(text)
                cache.add(f"corpus-{counts['responses_seen']}", text, tenant or script.tenant)
            tick(counts["tokens_seen"])
    warn(reader)
    if not cache.cached:
        raise ConfigError(f"nothing to index in {', '.join(map(str, corpus))}, or --max-bytes leaves no room for it.")
    _save(cache, output, {**counts, "tokenizer": words.name, "torn_records": len(reader.torn)}, as_json)


def _save(cache: SuffixCache, output: Path, facts: dict[str, Any], as_json: bool) -> None:
    from augury.index.store import save
    from augury.tools.shared.terminal import print_json
    from augury.tools.suffix.screen import show_built

    try:
        size = save(cache, output)
    except OSError as error:
        raise ConfigError(f"-o {output}: {error.strerror}.") from None
    record = {"file": str(output), **_facts(cache, size), **facts}
    (print_json if as_json else show_built)(record)


def _facts(cache: SuffixCache, size: int) -> dict[str, Any]:
    responses, held, tokens = cache.responses(), cache.bytes, cache.tokens
    return {
        "max_depth": cache.max_depth,
        "responses": len(responses),
        "tokens": tokens,
        "tenants": dict(Counter(tenant for tenant, _, _ in responses)),
        "file_bytes": size,
        "memory_bytes": held,
        "bytes_per_token": round(held / tokens, 1) if tokens else 0.0,
    }


def show(
    file: Annotated[Path, typer.Argument(help="A file that `augury suffix build` or an engine wrote.")],
    tokenizer: Annotated[str | None, typer.Option(help="Show patterns as text; as for `build`.")] = None,
    patterns: Annotated[int, typer.Option(min=0, help="How many repeated patterns to show.")] = 5,
    as_json: Json = False,
) -> None:
    """Check a suffix cache's file and say what is in it."""
    from augury.tools.replay.tokens import encoder
    from augury.tools.shared.terminal import print_json
    from augury.tools.suffix.screen import show_cache

    cache = load_cache(file)
    found = _patterns(cache, patterns, encoder(tokenizer) if tokenizer else None)
    record = {"file": str(file), **_facts(cache, file.stat().st_size), "patterns": found}
    (print_json if as_json else show_cache)(record)


def _patterns(cache: SuffixCache, count: int, encoder: Encoder | None) -> list[dict[str, Any]]:
    """The most frequent runs of eight tokens; runs that overlap a listed one are left out."""
    from augury.tools.suffix.patterns import frequent_runs

    runs = frequent_runs([tokens for _, _, tokens in cache.responses()], PATTERN, count) if count else []
    return [
        {"count": times, "tokens": tokens, "text": encoder.decode(tokens) if encoder else None}
        for tokens, times in runs
    ]
