"""`augury certify --suite` and `--table`: run the suites, write lines and a page, print the table."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from augury.config.errors import ConfigError
from augury.tools.certify.page import WORDS
from augury.tools.certify.report import SuiteProgress
from augury.tools.certify.suite.ask import Peer
from augury.tools.certify.suite.cells import Cell, append, exit_code, read
from augury.tools.certify.suite.identity import identify
from augury.tools.certify.suite.pair import Pair, SuitePlan
from augury.tools.certify.suite.rules import facts_of
from augury.tools.certify.suite.run import chosen, run_suites
from augury.tools.certify.suite.servers import Listed, ended_with_us, is_address, read_servers, running
from augury.tools.shared.endpoint import Endpoint
from augury.tools.shared.terminal import output_console, print_json


@dataclass(frozen=True, slots=True)
class SuiteOptions:
    """The command line's options."""

    plan: SuitePlan
    servers: Sequence[Listed]
    only: str | None = None
    lines: Path | None = None
    key: str | None = None
    baseline_key: str | None = None
    baseline_model: str | None = None
    timeout: float = 120.0


def listed(
    file: Path | None, url: str | None, baseline: str | None, model: str | None, method: str | None, release: str | None
) -> Sequence[Listed]:
    """The servers of a file, or the one whose address is given."""
    if file is not None:
        if url or baseline:
            raise ConfigError("--servers names the addresses too; leave --url and --baseline-url out.")
        return read_servers(file)
    if not url:
        raise ConfigError("--suite: say which server: --url A, with --baseline-url B where there is one, or --servers.")
    return [Listed(speculative=url, plain=baseline, model=model, method=method, release=release)]


def certify_servers(asked: SuiteOptions, progress: SuiteProgress) -> list[Cell]:
    """The cells of all servers; each server's are written as soon as they are complete."""
    found: list[Cell] = []
    names = chosen(asked.only)
    for entry, url, baseline in _started(asked.servers):
        fast = Endpoint("--url", url, asked.key, entry.model, asked.timeout)
        pair = Pair(_peer(fast, asked.plan), _plain(baseline, entry, asked), asked.plan)
        subject = identify(fast, entry.method, entry.release, entry.server)
        known = None if is_address(entry.speculative) else facts_of(entry.speculative)
        cells = run_suites(pair, subject, names, progress, known)
        if asked.lines is not None:
            append(asked.lines, cells)
        found += cells
    return found


def _started(entries: Sequence[Listed]) -> Iterator[tuple[Listed, str, str | None]]:
    """Each entry with the addresses of its two servers, started where they are commands."""
    for plain, group in groupby(entries, lambda entry: entry.plain):
        with ExitStack() as kept:
            kept.enter_context(ended_with_us())
            baseline = kept.enter_context(running(plain)) if plain else None
            for entry in group:
                with running(entry.speculative) as url:
                    yield entry, url, baseline


def _peer(endpoint: Endpoint, plan: SuitePlan) -> Peer:
    return Peer(endpoint, plan.max_tokens, plan.logprobs)


def _plain(url: str | None, entry: Listed, asked: SuiteOptions) -> Peer | None:
    if url is None:
        return None
    model = asked.baseline_model or entry.model
    endpoint = Endpoint("--baseline-url", url, asked.baseline_key or asked.key, model, asked.timeout)
    return _peer(endpoint, asked.plan)


def read_table(paths: Sequence[Path]) -> list[Cell]:
    """The cells of files that earlier runs wrote."""
    return read(paths)


def give(cells: Sequence[Cell], as_json: bool, html: Path | None) -> int:
    """Print the table, write the page, and return the exit code."""
    code = exit_code(cells)
    if html is not None:
        from augury.tools.certify.suite.page import suite_page

        try:
            html.write_text(suite_page(cells).encode("utf-8", "backslashreplace").decode(), encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"--html {html}: {error.strerror}.") from None
        print(f"wrote {html}", file=sys.stderr)
    if as_json:
        told = {"verdict": WORDS[code], "exit_code": code, "cells": [cell.record() for cell in cells]}
        print_json(told)
    else:
        from augury.tools.certify.suite.screen import show

        show(output_console(), cells)
    return code
