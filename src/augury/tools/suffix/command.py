"""`augury suffix`: suffix caches made ahead of the first request."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from augury.config.errors import ConfigError
from augury.tools.replay.command import TenantField, TokenizerOption, find_encoder, load_cache, progress, warn

if TYPE_CHECKING:
    from augury.index.suffix import SuffixCache
    from augury.tools.replay.tokens import Encoder

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
PATTERN = 8  # tokens of a repeated pattern


def build(
    corpus: Annotated[
        list[Path], typer.Argument(help="Traces, of which responses count, or texts, a document a line.")
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="The file to write.")],
    tokenizer: TokenizerOption = "default",
    max_depth: Annotated[int, typer.Option(min=1, max=32_767, help="Longest match and draft together.")] = 24,
    max_bytes: Annotated[int | None, typer.Option(min=1, help="Most memory; the oldest responses go first.")] = None,
    tenant: Annotated[str, typer.Option(help="Whose cache it is.")] = "",
    tenant_field: TenantField = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Stop after so many conversations.")] = None,
    as_json: Json = False,
) -> None:
    """Fill a suffix cache from a corpus and save it, for an engine to start with."""
    from augury.index.suffix import SuffixCache
    from augury.tools.replay.prefix import decoded_once
    from augury.tools.replay.tokens import scripts
    from augury.tools.replay.traces import TraceReader

    if not output.parent.is_dir():
        raise ConfigError(f"-o {output}: there is no directory {output.parent}.")
    if tenant and tenant_field:
        raise ConfigError("--tenant and --tenant-field say whose cache it is in two ways; keep one.")
    reader, encoder = TraceReader(corpus, tenant_field, limit, plain=True), find_encoder(tokenizer, as_json)
    cache, counts = SuffixCache(max_depth, -1, max_bytes), Counter[str]()
    with progress(reader) as tick:
        for script in decoded_once(scripts(reader, encoder)):
            # A record without a response, as in a vLLM log, is a text like any other.
            spans = script.spans or [(0, len(script.text))]
            counts["prompts_indexed"] += not script.spans
            _add(cache, (script.text[start:stop] for start, stop in spans), tenant or script.tenant, counts)
            tick(counts["tokens_seen"])
    warn(reader)
    if not cache.cached:
        raise ConfigError(f"nothing to index in {', '.join(map(str, corpus))}, or --max-bytes leaves no room for it.")
    _saved(cache, output, {**counts, "tokenizer": encoder.name, "torn_records": len(reader.torn)}, as_json)


def _add(cache: SuffixCache, texts: Iterable[Any], tenant: str, counts: Counter[str]) -> None:
    for text in texts:
        if len(text):
            counts["responses_seen"] += 1
            counts["tokens_seen"] += len(text)
            cache.add(f"corpus-{counts['responses_seen']}", text, tenant)


def _saved(cache: SuffixCache, output: Path, facts: dict[str, Any], as_json: bool) -> None:
    from augury.index.store import save
    from augury.tools.shared.terminal import print_json, size_text

    try:
        size = save(cache, output)
    except OSError as error:
        raise ConfigError(f"-o {output}: {error.strerror}.") from None
    record = {"file": str(output), **_facts(cache, size), **facts}
    if as_json:
        return print_json(record)
    dropped = facts["responses_seen"] - record["responses"]
    print(
        f"{output}: {record['responses']} responses, {record['tokens']} tokens, {size_text(size)}; in memory "
        f"{size_text(record['memory_bytes'])}, {record['bytes_per_token']} bytes a token"
    )
    print(f"tokenizer: {facts['tokenizer']}; the engine's must be the same")
    if dropped:
        print(f"{dropped} responses did not fit into --max-bytes, the oldest went first", file=sys.stderr)
    if facts.get("prompts_indexed"):
        print(f"{facts['prompts_indexed']} records had no response: their prompts were indexed", file=sys.stderr)
    return None


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
    from augury.tools.shared.terminal import UNSAFE, print_json, size_text

    cache = load_cache(file)
    encoder = find_encoder(tokenizer, as_json) if tokenizer else None
    record = {"file": str(file), **_facts(cache, file.stat().st_size), "patterns": _patterns(cache, patterns, encoder)}
    if as_json:
        return print_json(record)
    print(f"{file}: sound, {size_text(record['file_bytes'])}, depth {record['max_depth']}")
    print(f"{record['responses']} responses, {record['tokens']} tokens")
    print(f"in memory {size_text(record['memory_bytes'])}, {record['bytes_per_token']} bytes a token")
    for tenant, count in record["tenants"].items():
        print(f"  tenant {tenant!r}: {count} responses" if tenant else f"  no tenant: {count} responses")
    for found in record["patterns"]:
        text = found["text"]
        what = " ".join(map(str, found["tokens"])) if text is None else repr(text.translate(UNSAFE))
        print(f"  {found['count']:>7} x {what}")
    return None


def _patterns(cache: SuffixCache, count: int, encoder: Encoder | None) -> list[dict[str, Any]]:
    """The runs of eight tokens that occur most often; of runs that overlap one that is listed, only that one."""
    from augury.tools.replay.patterns import frequent_runs

    runs = frequent_runs([tokens for _, _, tokens in cache.responses()], PATTERN, count) if count else []
    return [
        {"count": times, "tokens": tokens, "text": encoder.decode(tokens) if encoder else None}
        for tokens, times in runs
    ]
