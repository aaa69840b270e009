"""The command line as data: every command's options and arguments, and the keys of what --json prints."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from promising import Promising, serving
from staged import body, staged
from typer.testing import CliRunner
from vllm_text import recorded

from augury.cli import app

NGRAM = '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3}'
SERVE = f"vllm serve meta-llama/Llama-3.1-8B-Instruct --speculative-config '{NGRAM}' --temperature 0"
TALK = "the cat sat on the mat and the cat sat on the mat again " * 4
DEPLOYED = ("--target", "llama-3.1-8b", "--gpu", "H200", "--concurrency", "1,8")
OPAQUE = ("condition", "when", "change", "values", "speculative_config", "config", "given", "recommended")


def commands() -> dict[str, Any]:
    """Every command by its path, hidden ones included, the whole tree."""
    root = typer.main.get_command(app)
    return dict(_walk(root, typer.Context(root, info_name="augury")))


def _walk(group: Any, context: Any) -> Iterator[tuple[str, Any]]:
    yield context.command_path, _told(group)
    for name in group.list_commands(context):
        _, command, _ = group.resolve_command(context, [name])
        inner = typer.Context(command, info_name=name, parent=context)
        if hasattr(command, "list_commands"):
            yield from _walk(command, inner)
        else:
            yield inner.command_path, _told(command) | {"hidden": group.commands[name].hidden}


def _told(command: Any) -> dict[str, Any]:
    return {"parameters": {" ".join([*one.opts, *one.secondary_opts]): _parameter(one) for one in command.params}}


def _parameter(one: Any) -> dict[str, Any]:
    """What it takes, and whatever is not as it is for most."""
    kind = one.type_descriptor.annotation
    told = {"kind": one.param_type_name, "type": kind.__name__ if isinstance(kind, type) else str(kind)}
    default = json.loads(json.dumps(one.default, default=str))
    more = {name: getattr(one, name, None) for name in ("required", "multiple", "hidden", "envvar", "min", "max")}
    more |= {"nargs": None if one.nargs == 1 else one.nargs}
    told |= {name: value for name, value in more.items() if value is not None and value is not False}
    return told if default is None else told | {"default": default}


def outputs(directory: Path) -> dict[str, Any]:
    """The key paths of what each command that needs no model prints with --json, by its words."""
    trace = directory / "trace.jsonl"
    talk = [{"role": "user", "content": "go"}, {"role": "assistant", "content": TALK}]
    trace.write_text(json.dumps({"messages": talk}))
    cache = directory / "cache.suffix"
    runs: dict[str, tuple[str, ...]] = {
        "doctor": ("doctor", SERVE),
        "doctor --fix": ("doctor", SERVE, "--fix"),
        "config check": ("config", "check", NGRAM),
        "config check, refused": ("config", "check", '{"method": "no such"}'),
        "config keys": ("config", "keys"),
        "config explain": ("config", "explain"),
        "knowledge list": ("knowledge", "list"),
        "knowledge show": ("knowledge", "show", "eagle3"),
        "models": ("models",),
        "models list": ("models", "list"),
        "monitor init": ("monitor", "init", str(directory / "monitoring")),
        "advise": ("advise", *DEPLOYED),
        "advise --trace": ("advise", *DEPLOYED, "--trace", str(trace), "--tokenizer", "bytes"),
        "replay": ("replay", str(trace), "--tokenizer", "bytes"),
        "suffix build": ("suffix", "build", str(trace), "-o", str(cache), "--tokenizer", "bytes"),
        "suffix show": ("suffix", "show", str(cache), "--tokenizer", "bytes"),
        "config check, with remarks": ("config", "check", NGRAM, "--as-of", "0.9.0"),
    }
    found = {name: _keys(*words) for name, words in runs.items()}
    version = {"version": body('{"version": "0.29.0"}', "application/json")}
    for name in ("check", "watch", "diagnose"):
        more = ("--interval", "0.1", *(("--once",) if name == "watch" else ()))
        with staged(*recorded("healthy-eagle3"), **version) as stage:
            found[name] = _keys(name, stage.url, *more)
    with serving(Promising()) as url:
        short = ("--only", "n", "--max-tokens", "8")
        found["certify --suite"] = _keys("certify", "--suite", "--url", url, *short)
    return found


def _keys(*words: str) -> list[str]:
    result = CliRunner().invoke(app, [*words, "--json"], prog_name="augury")
    if not result.stdout:
        raise AssertionError(f"{words}: {result.output}")
    return sorted(_paths(json.loads(result.stdout), ""))


def _paths(value: Any, here: str) -> set[str]:
    """Where a key is data, as a count or a method's name is, its own name is left out."""
    if isinstance(value, dict):
        below = {f"{here}.{'N' if key.isdigit() else key}".lstrip("."): one for key, one in value.items()}
        deeper = [_paths(one, path) for path, one in below.items() if path.rpartition(".")[2] not in OPAQUE]
        return set(below).union(*deeper)
    if isinstance(value, list):
        return {path for one in value for path in _paths(one, f"{here}[]")}
    return set()


@contextmanager
def empty_cache(directory: Path) -> Iterator[None]:
    """No model in the cache and nothing in the environment that the commands read."""
    before = dict(os.environ)
    os.environ["AUGURY_CACHE"] = str(directory)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
