"""Shows findings in a terminal: the position, the line with carets, why, and what to write instead."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from augury.tools.doctor.examine import Examination
from augury.tools.doctor.findings import Finding
from augury.tools.doctor.fix import unified
from augury.tools.doctor.report import counts
from augury.tools.doctor.unchecked import Unchecked
from augury.tools.shared.safe_text import safe_text
from augury.tools.shared.severity import STYLES
from augury.tools.shared.terminal import output_console, print_wrapped

NARROWEST = 40
MOST_UNCHECKED = 4  # open points that are listed one by one
PIPED = 160  # columns of a source line when the output is not a terminal


def show(examinations: Sequence[Examination], verbose: bool, console: Console | None = None) -> None:
    """Print every finding, then one summary line."""
    console = console or output_console()
    for examination in examinations:
        # Notes are the least urgent, so they come last.
        for finding in sorted(examination.findings, key=lambda f: f.severity == "note"):
            _show_finding(console, examination, finding, verbose)
        if not verbose and any(finding.severity == "note" for finding in examination.findings):
            console.print()
    _show_summary(console, examinations, verbose)


def _show_finding(console: Console, examination: Examination, finding: Finding, verbose: bool) -> None:
    line, column = examination.place(finding.start)
    where = f"{safe_text(examination.name) or 'command'}:{line}:{column}: "
    style = STYLES[finding.severity]
    message = safe_text(finding.message.replace("\n", " "))
    head = Text.assemble((where, "bold"), (f"{finding.severity}[{finding.id}]", style), ": ", message)
    print_wrapped(console, head, 0)
    if finding.severity == "note" and not verbose:
        return
    _show_line(console, examination, finding, style)
    for word, text in (("why", finding.why), ("fix", finding.fix)):
        _labelled(console, word, safe_text(text.replace("\n", " ")))
    console.print()


def _labelled(console: Console, word: str, text: str) -> None:
    """Print a label in bold and its text, indented as a block."""
    if not console.is_terminal:
        console.print(Text.assemble("  ", (f"{word}: ", "bold"), text), soft_wrap=True)
        return
    table = Table.grid()
    table.add_column(no_wrap=True)
    table.add_column()
    table.add_row(Text(f"  {word}: ", "bold"), Text(text))
    console.print(table)


def _show_line(console: Console, examination: Examination, finding: Finding, style: str) -> None:
    """Print the source line, cut to fit around the span, and carets under it."""
    text = examination.text
    line, column = examination.place(finding.start)
    begin = finding.start - column + 1
    end = text.find("\n", begin)
    source = text[begin : len(text) if end < 0 else end].rstrip("\r")
    first = min(finding.start - begin, len(source))
    last = max(first + 1, min(finding.end - begin, len(source)))
    number = str(line)
    width = (console.width if console.is_terminal else PIPED) - len(number) - 5
    source, first, last = _cut(source.replace("\t", " "), first, last, max(width, NARROWEST))
    gutter = " " * len(number)
    shown = Text.assemble((f" {number} | ", "dim"), source[:first], (source[first:last], style), source[last:])
    under = " " * cell_len(source[:first]) + "^" * max(1, cell_len(source[first:last]))
    console.print(shown, no_wrap=True, crop=False, overflow="ignore", soft_wrap=True)
    console.print(Text.assemble((f" {gutter} | ", "dim"), (under, style)), no_wrap=True, crop=False, soft_wrap=True)


def _cut(source: str, first: int, last: int, width: int) -> tuple[str, int, int]:
    """A line cut to a width, around the span that is marked."""
    source = "".join(letter if letter.isprintable() else "?" for letter in source)
    if cell_len(source) <= width:
        return source, first, last
    last = min(last, first + width - 12)
    start = max(0, min(first - (width - (last - first)) // 2, len(source) - width + 2))
    stop = min(len(source), start + width - 2)
    head, tail = "…" if start else "", "…" if stop < len(source) else ""
    shift = len(head) - start
    return head + source[start:stop] + tail, first + shift, min(last + shift, len(head) + stop - start)


def _show_summary(console: Console, examinations: Sequence[Examination], verbose: bool) -> None:
    numbers = counts(examinations)
    said = [(_many(numbers[kind], kind), STYLES[kind]) for kind in STYLES if numbers[kind]]
    commands = [command for one in examinations for command in one.commands]
    open_ones = [left for command in commands for left in command.unchecked]
    clean = Text("nothing found" if open_ones else "clean", "bold green")
    parts: list[Text] = [Text(", ").join(Text(*one) for one in said) if said else clean]
    where = f" in {_many(len(commands), 'command')}"
    if len(examinations) > 1:
        where += f" of {_many(len(examinations), 'file')}"
    parts[0].append(where)
    parts.append(Text(_releases(examinations)))
    if open_ones:
        parts.append(Text(f"{_many(len(open_ones), 'thing')} not checked"))
    fixable = sum(bool(finding.edits) for one in examinations for finding in one.findings)
    if fixable:
        parts.append(Text(f"{fixable} can be fixed: --fix"))
    if numbers["note"] and not verbose:
        parts.append(Text("-v explains notes"))
    _show_unchecked(console, open_ones)
    print_wrapped(console, Text.assemble((" · ", "dim")).join(parts), 0)


def _helps(how: str, commands: str) -> str:
    return f"{how} would allow more checks of {commands}" if how.startswith("--") else f"{how} ({commands})"


def _show_unchecked(console: Console, left: Sequence[Unchecked]) -> None:
    """Print what was not checked and what would allow it; if there is much of it, counted by that remedy."""
    different = list(dict.fromkeys(left))
    if len(different) <= MOST_UNCHECKED:
        for one in different:
            _labelled(console, "not checked", safe_text(f"{one.what} ({one.why}; {one.how})"))
        return
    ways = Counter(one.how for one in left)
    said = ", ".join(_helps(how, _many(number, "command")) for how, number in ways.most_common())
    _labelled(console, "not checked", f"{_many(len(left), 'thing')} for lack of files: {said}; --json lists them")


def _many(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _releases(examinations: Sequence[Examination]) -> str:
    """The releases that were checked against, and who named them."""
    named = {(c.release, c.named_by) for one in examinations for c in one.commands if c.release}
    words = {"you": "as you asked", "file": "as the file names it", "nobody": "the newest known (--vllm-version)"}
    if not named:
        return "checked against Augury itself"
    return "checked against " + "; ".join(f"vLLM {release}, {words[who]}" for release, who in sorted(named))


def show_fixed(before: Sequence[Examination], after: Sequence[Examination], written: bool, verbose: bool) -> None:
    """Print the fixed command or a diff; the remaining findings go to stderr, so that stdout can be piped."""
    for old, new in zip(before, after, strict=True):
        if not old.name:
            text = new.text if new.text.endswith("\n") else new.text + "\n"
            _write_out(safe_text(text, keep="\n\t") if sys.stdout.isatty() else text)
        elif written and new.text != old.text:
            print(safe_text(f"{old.name}: fixed"))
        elif not written:
            diff = unified(old, new)
            _write_out(safe_text(diff, keep="\n\t") if sys.stdout.isatty() else diff)
    console = Console(stderr=True, highlight=False)
    show(after, verbose, console)


def _write_out(text: str) -> None:
    """Write UTF-8 whatever the terminal's encoding, because the output may become a file."""
    sys.stdout.flush()
    sys.stdout.buffer.write(text.encode("utf-8", "surrogateescape"))
    sys.stdout.buffer.flush()
