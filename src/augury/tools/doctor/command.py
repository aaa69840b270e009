"""`augury doctor`: what is wrong with a vllm command, wherever it is written."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from augury.config.errors import ConfigError
from augury.config.facts import ModelFacts, read_facts
from augury.config.files import read_bounded
from augury.tools.doctor.annotations import annotated
from augury.tools.doctor.examine import CheckedAgainst, Examination, check_release, examine
from augury.tools.doctor.fix import mended, unified
from augury.tools.doctor.found.find import HOLDS, kind_by_name
from augury.tools.doctor.report import as_record, counts, exit_code, sarif
from augury.tools.doctor.screen import show, show_fixed
from augury.tools.doctor.upgrade import releases, upgrades
from augury.tools.doctor.upgrade_screen import as_upgrade_record, show_upgrades
from augury.tools.shared.group import WordsOrCommands, later, panels
from augury.tools.shared.safe_text import safe_text
from augury.tools.shared.terminal import print_json

LARGEST = 2_000_000  # bytes; larger files are not hand-written
SKIPPED = {"node_modules", "__pycache__", "site-packages"}
UNREADABLE = 2
Format = Literal["text", "json", "sarif", "github"]


def doctor(
    what: Annotated[list[str], typer.Argument(metavar="FILE|DIR|-|COMMAND", help="A file, a directory, - or a line.")],
    vllm_version: Annotated[
        str | None,
        typer.Option(
            metavar="VERSION", help="The vLLM release it is for; default: what the file names, or the newest known."
        ),
    ] = None,
    target: Annotated[str | None, typer.Option(metavar="DIR", help="The target's config.json and tokenizer.")] = None,
    drafter: Annotated[str | None, typer.Option(metavar="DIR", help="The drafter's.")] = None,
    fix: Annotated[bool, typer.Option("--fix", help="Show the fixed command, or a diff of the file.")] = False,
    write: Annotated[bool, typer.Option("--write", help="With --fix: change the files.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings count as errors.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Explain notes too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
    sarif_file: Annotated[Path | None, typer.Option("--sarif", metavar="FILE", help="Write SARIF 2.1.0 here.")] = None,
    form: Annotated[
        Format, typer.Option("--format", help="What is printed; github: annotations of a pull request.")
    ] = "text",
    skip_others: Annotated[
        bool, typer.Option("--skip-others", help="Skip files without a command, for hooks that pass every file.")
    ] = False,
    old: Annotated[
        str | None, typer.Option("--from", metavar="VERSION", help="With --to: the release you run now.")
    ] = None,
    new: Annotated[
        str | None, typer.Option("--to", metavar="VERSION", help="Show what an upgrade to this release changes.")
    ] = None,
) -> None:
    """Lint vllm and augury commands. Exit code: 0 clean, 1 errors (with --strict: or warnings), 2 not readable."""
    _forgive_output()
    as_json = as_json or form == "json"
    try:
        if fix and form in ("sarif", "github"):
            raise ConfigError(f"--format {form} tells what was found, --fix shows what to write; leave one out.")
        if write and not fix:
            raise ConfigError("--write changes files by what --fix finds; give both.")
        if old is not None or new is not None:
            if vllm_version is not None or fix or sarif_file is not None:
                raise ConfigError("--from and --to compare two releases; leave --vllm-version, --fix and --sarif out.")
            raise typer.Exit(_upgrade(what, target, drafter, old, new, strict, as_json))
        before, after = _looked_at(what, vllm_version, target, drafter, fix, skip_others)
        if write:
            _write(before, after)
    except ConfigError as error:
        if not as_json:
            raise
        print_json({"error": str(error), "exit_code": UNREADABLE})
        raise typer.Exit(UNREADABLE) from None
    code = exit_code(after, strict)
    if sarif_file is not None:
        _save(sarif_file, json.dumps(sarif(after), indent=2) + "\n")
    if as_json:
        print_json(_record(before, after, fix, code))
    elif form != "text":
        _print_for_programs(after, form)
    elif fix:
        show_fixed(before, after, write, verbose)
    elif after or not skip_others:
        show(after, verbose)
    raise typer.Exit(code)


def _print_for_programs(found: list[Examination], form: Format) -> None:
    if form == "sarif":
        print_json(sarif(found))
    for line in annotated(found) if form == "github" else ():
        print(line)


def _forgive_output() -> None:
    """Show a question mark for what the terminal cannot show: a command may hold any bytes, in any locale."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _looked_at(
    what: list[str], release: str | None, target: str | None, drafter: str | None, fix: bool, skip_others: bool
) -> tuple[list[Examination], list[Examination]]:
    """Examine every input, as it is and, with `fix`, as it would be once fixed."""
    release = check_release(release) if release is not None else None
    asked = CheckedAgainst(release, _facts("--target", target), _facts("--drafter", drafter))
    found = [found for one in what for found in _examined(one, asked, skip_others)]
    before = [one for one in found if one.commands] if skip_others else _with_commands(found, what)
    return before, [mended(one, asked) for one in before] if fix else before


def _upgrade(
    what: list[str], target: str | None, drafter: str | None, old: str | None, new: str | None, strict: bool, json: bool
) -> int:
    """Show what an upgrade changes; the exit code is 1 if it breaks a command."""
    old, new = releases(old, new)
    asked = CheckedAgainst(None, _facts("--target", target), _facts("--drafter", drafter))
    looked_at = _with_commands([found for one in what for found in _examined(one, asked)], what)
    found = [one for text in looked_at for one in upgrades(text.text, text.name, asked, old, new)]
    bad = ("error", "warning") if strict else ("error",)
    code = int(any(finding.severity in bad for one in found for finding in (*one.keys, *one.opened)))
    if json:
        print_json(as_upgrade_record(found, old, new, code))
    else:
        show_upgrades(found, old, new)
    return code


def _facts(option: str, directory: str | None) -> ModelFacts | None:
    if directory is None:
        return None
    facts = read_facts(directory)
    if facts is None:
        raise ConfigError(f"{option} {directory}: no config.json there; name a model's directory.")
    return facts


def _examined(what: str, asked: CheckedAgainst, skip_others: bool = False) -> Iterator[Examination]:
    """Examine one input: a single text, or every file of a directory that holds a command."""
    if what == "-":
        raw = sys.stdin.buffer.read(LARGEST + 1)
        if len(raw) > LARGEST:
            raise ConfigError(f"standard input has more than {LARGEST:,} bytes; give it what holds the command alone.")
        yield examine(_decoded(raw, "standard input"), "", asked)
        return
    if not what.strip():
        raise ConfigError("nothing was given to look at (an empty variable?); name a file, a directory or a command.")
    path = Path(what)
    try:
        kind = "directory" if path.is_dir() else "file" if path.exists() else None
    except (OSError, ValueError):
        kind = None
    if kind == "directory":
        for name, text in _inside(path):
            yield from _as_far(text, name, asked)
    elif kind == "file" and skip_others:
        text = read_bounded(path, LARGEST).decode(errors="replace") if path.stat().st_size <= LARGEST else ""
        if HOLDS.search(text):
            yield from _as_far(text, what, asked)
    elif kind == "file":
        yield examine(_decoded(_read(path), what), what, asked)
    elif any(letter in what for letter in " \n\t{"):
        yield examine(what, "", asked)
    else:
        raise ConfigError(f"{what!r} is not a file; name one, or give a whole command such as 'vllm serve MODEL ...'.")


def _as_far(text: str, name: str, asked: CheckedAgainst) -> Iterator[Examination]:
    """Examine one file of many; if it cannot be read, say so on stderr and let the others be read."""
    try:
        yield examine(text, name, asked)
    except ConfigError as error:
        print(safe_text(f"not read: {error}"), file=sys.stderr)


def _inside(directory: Path) -> Iterator[tuple[str, str]]:
    for folder, folders, files in os.walk(directory):
        folders[:] = sorted(f for f in folders if f not in SKIPPED and not f.startswith("."))
        for name in sorted(files):
            path = Path(folder) / name
            try:
                # A link may lead to a device, which never ends, or to a pipe that stays empty.
                text = read_bounded(path, LARGEST).decode() if path.is_file() else ""
            except (OSError, UnicodeDecodeError, ConfigError):
                continue
            script = not path.suffix and text.startswith("#!")
            if HOLDS.search(text) and (kind_by_name(name) or script):
                yield str(path), text


def _read(path: Path) -> bytes:
    try:
        return read_bounded(path, LARGEST)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}.") from None


def _decoded(raw: bytes, name: str) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise ConfigError(f"{name} is not a text in UTF-8.") from None


def _with_commands(found: list[Examination], what: list[str]) -> list[Examination]:
    """The examinations that hold a command; a ConfigError if none does."""
    with_any = [one for one in found if one.commands]
    if not with_any:
        where = what[0] if len(what) == 1 and len(what[0]) < 60 else "what was given"
        raise ConfigError(f"no `vllm serve`, `vllm bench`, `augury serve` or speculative_config in {where}.")
    return with_any


def _write(before: list[Examination], after: list[Examination]) -> None:
    for old, new in zip(before, after, strict=True):
        if not old.name:
            raise ConfigError("--write changes files; a command line or standard input is printed by --fix alone.")
        if new.text != old.text:
            _save(Path(old.name), new.text)


def _save(path: Path, text: str) -> None:
    try:
        path.write_bytes(text.encode())
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}.") from None


def _record(before: list[Examination], after: list[Examination], fix: bool, code: int) -> dict[str, Any]:
    files = [as_record(one) for one in after]
    if fix:
        for record, old, new in zip(files, before, after, strict=True):
            record |= {"fixed": new.text, "diff": unified(old, new)}
    numbers = counts(after)
    summary = {"error": numbers["error"], "warning": numbers["warning"], "note": numbers["note"]}
    summary["unchecked"] = sum(len(command.unchecked) for one in after for command in one.commands)
    return {"files": files, "summary": summary, "exit_code": code}


doctor_app = typer.Typer(
    cls=WordsOrCommands, add_completion=False, rich_markup_mode=panels(), subcommand_metavar="| serve [OPTIONS]"
)
doctor_app.callback(invoke_without_command=True)(doctor)
later(
    doctor_app,
    "serve",
    "augury.tools.doctor.webhook.command:serve",
    "Refuse Kubernetes objects whose vllm command has an error: a validating admission webhook.",
)
