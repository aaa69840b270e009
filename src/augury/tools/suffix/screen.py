"""The output of `augury suffix`."""

from __future__ import annotations

import sys
from typing import Any

from augury.tools.shared.safe_text import safe_text
from augury.tools.shared.terminal import UNSAFE, size_text


def show_built(record: dict[str, Any]) -> None:
    """Print the facts of a cache that was just written."""
    print(
        f"{safe_text(record['file'])}: {record['responses']} responses, {record['tokens']} tokens, "
        f"{size_text(record['file_bytes'])}; {_in_memory(record)}"
    )
    print(f"tokenizer: {record['tokenizer']}; the engine's must be the same")
    if dropped := record["responses_seen"] - record["responses"]:
        print(f"{dropped} responses did not fit into --max-bytes; the oldest were dropped", file=sys.stderr)
    if record.get("prompts_indexed"):
        print(f"{record['prompts_indexed']} records had no response: their prompts were indexed", file=sys.stderr)


def show_cache(record: dict[str, Any]) -> None:
    """Print the facts of a cache that was read from its file."""
    print(f"{safe_text(record['file'])}: sound, {size_text(record['file_bytes'])}, depth {record['max_depth']}")
    print(f"{record['responses']} responses, {record['tokens']} tokens")
    print(_in_memory(record))
    for tenant, count in record["tenants"].items():
        print(f"  tenant {tenant!r}: {count} responses" if tenant else f"  no tenant: {count} responses")
    for found in record["patterns"]:
        text = found["text"]
        what = " ".join(map(str, found["tokens"])) if text is None else repr(text.translate(UNSAFE))
        print(f"  {found['count']:>7} x {what}")


def _in_memory(record: dict[str, Any]) -> str:
    return f"in memory {size_text(record['memory_bytes'])}, {record['bytes_per_token']} bytes per token"
