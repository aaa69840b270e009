"""`augury certify`: show that speculation did not change the output, by proof, on a model, or through two servers."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from augury.config import surfaces
from augury.config.errors import ConfigError
from augury.tools.certify.progress import watched
from augury.tools.certify.prompts import PROMPTS
from augury.tools.certify.report import ComparisonReport, SuiteProgress
from augury.tools.shared.given_prompts import GivenPrompt, gather
from augury.tools.shared.terminal import output_console, print_json

if TYPE_CHECKING:
    from augury.tools.certify.proof import ProofCertificate

HOW = "say what to certify: --exact, or -sc JSON with --model M, or --url A with --baseline-url B (and --suite)"


def certify(
    exact: Annotated[bool, typer.Option("--exact", help="Prove the rules by enumeration; needs no model.")] = False,
    model: Annotated[
        str | None, typer.Option(help="'default', a directory, a .gguf file, a hub id; with --url, the name there.")
    ] = None,
    speculative_config: Annotated[
        str | None, typer.Option("--speculative-config", "-sc", metavar="JSON", help="How to speculate, as in vLLM.")
    ] = None,
    url: Annotated[str | None, typer.Option(metavar="A", help="An OpenAI-compatible server that speculates.")] = None,
    baseline_url: Annotated[
        str | None, typer.Option(metavar="B", help="A server with the same model that does not speculate.")
    ] = None,
    baseline_model: Annotated[
        str | None, typer.Option(help="The model's name on the baseline server, if it differs.")
    ] = None,
    api_key: Annotated[str | None, typer.Option(envvar="AUGURY_API_KEY", help="Key for both servers.")] = None,
    baseline_api_key: Annotated[
        str | None, typer.Option(envvar="AUGURY_BASELINE_API_KEY", help="Key for the baseline server, if it differs.")
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option("--prompts", "--prompts-file", help='One per line, or JSONL with "prompt" or "messages".'),
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens of each answer that is compared.")] = 64,
    temperature: Annotated[
        list[float] | None, typer.Option(min=0, help="0 is greedy; may be repeated. Default: several settings.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds for each prompt and sampled setting.")] = 2,
    samples: Annotated[
        int | None, typer.Option(min=1, help="Sampled answers for each distribution tested (2000; 1000 with --url).")
    ] = None,
    alpha: Annotated[float, typer.Option(min=1e-9, max=0.5, help="Chance of a false alarm, over all tests.")] = 0.01,
    batch: Annotated[
        int | None, typer.Option(min=1, help="Concurrent requests (8; 32 when many answers are sampled).")
    ] = None,
    same_seed: Annotated[
        bool,
        typer.Option("--same-seed", help="With --url: sampled answers must be equal too, as between Augury servers."),
    ] = False,
    logprobs: Annotated[bool, typer.Option(help="With --url: ask for log-probabilities.")] = True,
    tolerance: Annotated[float, typer.Option(min=0, help="With --url: largest gap of a near-tie, in nats.")] = 0.25,
    timeout: Annotated[float, typer.Option(min=0.001, help="With --url: seconds to wait for an answer.")] = 120.0,
    max_model_len: Annotated[int | None, typer.Option(min=1, help="Longest prompt and answer together.")] = None,
    dtype: str = "auto",
    device: str = "auto",
    full: Annotated[bool, typer.Option("--full", help="With --exact: a row for every line.")] = False,
    suite: Annotated[
        bool, typer.Option("--suite", help="With --url or --servers: every promise of a server, one cell each.")
    ] = False,
    servers: Annotated[
        Path | None, typer.Option(metavar="FILE", help="With --suite: a YAML list of servers to start.")
    ] = None,
    only: Annotated[str | None, typer.Option(help="With --suite: these suites alone, comma-separated.")] = None,
    long_words: Annotated[int, typer.Option(min=1, help="With --suite: words of the long prompt.")] = 1000,
    method: Annotated[str | None, typer.Option(help="With --suite: the method, where the server does not say.")] = None,
    release: Annotated[
        str | None, typer.Option(help="With --suite: the server's release, where it does not say.")
    ] = None,
    lines: Annotated[
        Path | None, typer.Option(metavar="FILE", help="With --suite: append a JSON line for each cell to this file.")
    ] = None,
    table: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="Show the cells of such a file; may be repeated.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a report with plots here.")] = None,
) -> None:
    """Show that speculation changes nothing. Exit code: 0 it holds, 1 it does not, 2 it could not be run."""
    _writable(html)
    named = bool(exact or url or suite or table)
    spec = surfaces.gather(speculative_config) if named else surfaces.gather(speculative_config, {}, os.environ)
    at_servers = bool(url or baseline_url or servers or suite)
    if sum([exact, spec is not None, at_servers, bool(table)]) != 1:
        raise ConfigError(f"{HOW}; one of the three.")
    if servers and not suite:
        raise ConfigError("--servers goes with --suite.")
    amounts: dict[str, Any]
    if suite or table:
        keys = (api_key, baseline_api_key, baseline_model)
        where = (servers, url, baseline_url, model, method, release)
        asked = {"max_tokens": max_tokens, "in_flight": batch or 8, "long_words": long_words, "tolerance": tolerance}
        amounts = {**asked, "logprobs": logprobs} | ({"prompts": _texts(_asked(prompts))} if prompts else {})
        raise typer.Exit(_suite(table or [], where, amounts, only, lines, keys, timeout, as_json, html))
    with watched(as_json) as progress:
        if exact:
            found: ProofCertificate | ComparisonReport = _exact(progress)
        elif spec is not None:
            arguments = {"dtype": dtype, "device": device, "max_model_len": max_model_len, "max_num_seqs": batch}
            amounts = {"max_tokens": max_tokens, "seeds": seeds, "samples": samples or 2000, "alpha": alpha}
            found = _model(model or "default", spec, arguments, _asked(prompts), temperature, amounts, progress)
        else:
            ends = _servers(url, baseline_url, model, baseline_model, api_key, baseline_api_key, timeout)
            amounts = {
                "max_tokens": max_tokens,
                "seeds": seeds,
                "samples": samples or 1000,
                "alpha": alpha,
                "in_flight": batch or 8,
                "same_seed": same_seed,
                "logprobs": logprobs,
                "tolerance": tolerance,
            }
            if temperature:
                amounts["temperatures"] = temperature
            found = _urls(*ends, _texts(_asked(prompts)), amounts, progress)
    _give(found, full, as_json, html)
    raise typer.Exit(found.exit_code)


def _writable(html: Path | None) -> None:
    if html is not None and html.is_dir():
        raise ConfigError(f"--html {html} is a directory; name a file.")
    if html is not None and not html.parent.is_dir():
        raise ConfigError(f"--html {html}: there is no directory {html.parent}.")


def _suite(
    table: list[Path],
    where: tuple[Path | None, str | None, str | None, str | None, str | None, str | None],
    amounts: dict[str, Any],
    only: str | None,
    lines: Path | None,
    keys: tuple[str | None, str | None, str | None],
    timeout: float,
    as_json: bool,
    html: Path | None,
) -> int:
    """Print the cells of files, or those of servers certified now; returns the exit code."""
    from augury.tools.certify.suite.command import SuiteOptions as SuiteAsked
    from augury.tools.certify.suite.command import certify_servers, give, listed, read_table
    from augury.tools.certify.suite.pair import SuitePlan

    if table:
        return give(read_table(table), as_json, html)
    asked = SuiteAsked(SuitePlan(**amounts), listed(*where), only, lines, *keys, timeout)
    with watched(as_json) as progress:
        cells = certify_servers(asked, progress)
    return give(cells, as_json, html)


def _exact(progress: SuiteProgress) -> ProofCertificate:
    from augury.tools.certify.proof import certify_exact

    return certify_exact(progress)


def _model(
    name: str,
    spec: dict[str, Any],
    arguments: dict[str, Any],
    prompts: list[GivenPrompt],
    temperatures: list[float] | None,
    amounts: dict[str, Any],
    progress: Any,
) -> ComparisonReport:
    from augury.config.engine import EngineConfig
    from augury.tools.shared.loading import load, with_installed

    spec = with_installed(spec, name, progress.quiet)
    asked = EngineConfig.parse(model=name, **arguments, speculative_config=spec).speculative_config
    assert asked is not None
    if arguments["max_num_seqs"] is None:
        arguments = {**arguments, "max_num_seqs": 8 if asked.rule == "coupled" else 32}
    # On a GPU the two engines share its memory.
    plain = load(name, quiet=progress.quiet, **arguments, gpu_memory_utilization=0.45)
    fast = load(name, quiet=progress.quiet, **arguments, gpu_memory_utilization=0.9, speculative_config=spec)
    from augury.tools.certify.model import ModelPlan, certify_model
    from augury.tools.certify.settings import SETTINGS, SamplingSetting

    settings: Any = SETTINGS
    if temperatures:
        named = [(f"T={heat:g}" if heat else "greedy", heat) for heat in dict.fromkeys(temperatures)]
        settings = [SamplingSetting(words, {"temperature": heat}) for words, heat in named]
    return certify_model(plain, fast, ModelPlan(prompts, settings, **amounts), progress)


def _servers(
    url: str | None,
    baseline: str | None,
    model: str | None,
    baseline_model: str | None,
    key: str | None,
    baseline_key: str | None,
    timeout: float,
) -> tuple[Any, Any]:
    from augury.tools.shared.endpoint import Endpoint

    if not url or not baseline:
        missing = "--baseline-url" if url else "--url"
        raise ConfigError(f"{missing} is missing: two servers are compared, one that speculates and one that does not.")
    fast = Endpoint("--url", url, key, model, timeout)
    plain = Endpoint("--baseline-url", baseline, baseline_key or key, baseline_model or model, timeout)
    return fast, plain


def _urls(
    fast: Any, plain: Any, prompts: list[str], amounts: dict[str, Any], progress: SuiteProgress
) -> ComparisonReport:
    from augury.tools.certify.urls import UrlPlan, certify_urls

    return certify_urls(fast, plain, UrlPlan(prompts, **amounts), progress)


def _asked(file: Path | None) -> list[GivenPrompt]:
    return list(PROMPTS) if file is None else gather(None, file)


def _texts(asked: list[GivenPrompt]) -> list[str]:
    for prompt in asked:
        if not isinstance(prompt, str):
            raise ConfigError('--prompts: a server is sent plain texts; write "prompt" instead of "messages".')
    return [prompt for prompt in asked if isinstance(prompt, str)]


def _give(found: ProofCertificate | ComparisonReport, full: bool, as_json: bool, html: Path | None) -> None:
    """Print the result, and write the HTML page."""
    from augury.tools.certify.page import certificate_page, report_page
    from augury.tools.certify.screen import show_certificate, show_report

    if html is not None:
        page = report_page(found) if isinstance(found, ComparisonReport) else certificate_page(found)
        try:
            html.write_text(page.encode("utf-8", "backslashreplace").decode(), encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"--html {html}: {error.strerror}.") from None
        print(f"wrote {html}", file=sys.stderr)
    if as_json:
        print_json(found.record())
    elif isinstance(found, ComparisonReport):
        show_report(output_console(), found)
    else:
        show_certificate(output_console(), found, full)
