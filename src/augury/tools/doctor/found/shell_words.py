"""A shell script as simple commands of words, each with its position and quoting, and known variables filled in.

Only what command lines in scripts, Dockerfiles and unit files need: quotes, escapes, continuation lines, comments,
operators, assignments, arrays and `$NAME`. Nothing is ever run.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field

from augury.tools.doctor.found.allowance import spend
from augury.tools.doctor.found.mapped import Mapped

NAME = re.compile(r"\$(?:\{([A-Za-z_]\w*)(?::?[-=]((?:\$\{[^{}]{0,200}\}|[^}]){0,999}))?\}|([A-Za-z_]\w*))")
PLAIN = re.compile(r"[\w@%+:,./-]+")  # a default that is a name or a number
ARRAY = re.compile(r'"\$\{([A-Za-z_]\w*)\[[@*]\]\}"|\$\{([A-Za-z_]\w*)\[[@*]\]\}|"?\$\{?(@)\}?"?')
ARRAY_SET = re.compile(r"([A-Za-z_]\w*)\+?=")
ASSIGNED = re.compile(r"([A-Za-z_]\w*)=")
BREAKS = ";|&()\n"
OPENS, CLOSES = ("if", "case", "for", "while", "until"), ("fi", "esac", "done")
LEADS = ("then", "else", "do", "elif", "!", "{")  # words that a command may follow
ORDINARY = re.compile(r"[\w@%+=:,./{}\[\]-]+")  # letters that mean themselves inside and outside of quotes
INSIDE = {"'": "'", '"': '"'}
UNSPELT = "="  # instead of a quote: the letter is in a container's variable, which no shell parses


@dataclass(frozen=True, slots=True)
class Word:
    """One argument: what the program receives, and how it is written."""

    body: Mapped
    quotes: str  # for each character the quote it is inside, or a space
    start: int  # in the source, quotes included
    end: int
    shell: bool = True  # False: an element of a list, which no shell parses
    expands: bool = False  # holds a variable that nothing here sets
    unclosed: str = ""  # the quote that is never closed

    @property
    def text(self) -> str:
        """The argument as the program receives it."""
        return self.body.text

    def part(self, start: int, end: int | None = None) -> Word:
        """A stretch of the word, such as what follows a `=`."""
        end = len(self.text) if end is None else end
        body = self.body.part(start, end)
        first, last = self.body.place(start, end)
        last = self.end if end == len(self.text) else last
        return Word(body, self.quotes[start:end], first, last, self.shell, self.expands)

    def written(self, text: str, at: int) -> str:
        """Quote and escape a text as it must be spelt at character `at` of this word."""
        if not self.shell:
            return self.body.encode(text)
        quote = self.quotes[min(at, len(self.quotes) - 1)] if self.quotes else " "
        return self.body.encode(_spelt(text, quote))

    def inside(self) -> Mapped:
        """The text as a script of its own, such as the argument of `bash -c`; edits in it are quoted twice."""
        quote = self.quotes[:1] or " "
        return self.body.within(lambda text: _spelt(text, quote)) if self.shell else self.body

    def anew(self, text: str) -> str:
        """The source text that replaces the whole word with `text`."""
        return self.body.encode(shlex.quote(text) if self.shell else text)


def _spelt(text: str, quote: str) -> str:
    if quote == UNSPELT:
        return text
    if quote == "'":
        return text.replace("'", "'\\''")
    if quote == '"':
        return re.sub(r'([\\"$`])', r"\\\1", text)
    return re.sub(r"([^\w@%+=:,./-])", r"\\\1", text)


@dataclass(slots=True)
class Simple:
    """A simple command: its words, and the variables set before it."""

    words: list[Word]
    environment: dict[str, Word] = field(default_factory=dict)


def plain_words(source: Mapped) -> list[Word]:
    """Words of a text in which only quoting has a meaning, not operators or assignments."""
    return [word for one in ShellReader(source, operators=False).commands() for word in one.words]


class _Letters:
    """A word under construction."""

    def __init__(self, source: Mapped) -> None:
        self.source, self.expands = source, False
        self.text: list[str] = []
        self.quotes: list[str] = []
        self.at: list[int] = []
        self.ends: list[int] = []

    def add(self, text: str, quote: str, start: int, end: int) -> None:
        """Append letters that stand for themselves."""
        self.text.append(text)
        self.quotes.append(quote * len(text))
        self.at += self.source.at[start:end]
        self.ends += self.source.until(start, end)

    def spelt(self, letter: str, quote: str, start: int, end: int) -> None:
        """Append one letter that several letters of the source spell."""
        self.text.append(letter)
        self.quotes.append(quote)
        self.at.append(self.source.at[start])
        self.ends += self.source.until(end - 1, end)

    def splice(self, value: Word) -> None:
        """Append a variable's value, which keeps the positions where it was written."""
        spend(len(value.text))
        self.text.append(value.text)
        self.quotes.append(value.quotes)
        self.at += value.body.at[:-1]
        self.ends += value.body.until(0, len(value.text))
        self.expands = self.expands or value.expands

    def closed(self, first: int, last: int, after: int, unclosed: str = "") -> Word:
        """The finished word."""
        body = Mapped("".join(self.text), (*self.at, after), self.source.layers, tuple(self.ends))
        return Word(body, "".join(self.quotes), first, last, True, self.expands, unclosed)


class ShellReader:
    """Splits a script into simple commands."""

    def __init__(
        self,
        source: Mapped,
        variables: dict[str, Word] | None = None,
        operators: bool = True,
        handed_on: list[Word] | None = None,
    ) -> None:
        self.source, self.text, self.i = source, source.text, 0
        self.variables = dict(variables or {})
        self.operators = operators  # False: `;` and `A=b` are words like others, as in unit files
        self.exported: dict[str, Word] = {}
        self.arrays: dict[str, list[Word]] = {"@": handed_on} if handed_on else {}
        self.depth, self.perhaps = 0, False  # inside how many ifs, cases and loops; after `&&` or `||`

    def commands(self) -> list[Simple]:
        """Every simple command, in order."""
        found: list[Simple] = []
        words: list[Word] = []
        while self.i < len(self.text):
            letter = self.text[self.i]
            if letter in " \t\r":
                self.i += 1
            elif self.text.startswith(("\\\n", "\\\r\n"), self.i):
                self.i = self.text.index("\n", self.i) + 1
            elif letter == "#":
                end = self.text.find("\n", self.i)
                self.i = len(self.text) if end < 0 else end
            elif letter == "(" and self.operators and words and self._sets_array(words[-1]):
                self._array(words.pop())
            elif letter == "\n" or (self.operators and letter in BREAKS):
                self._close(words, found)
                joined = self.text.startswith(("&&", "||"), self.i)
                self.perhaps = joined or (self.perhaps and not words)
                self.i += 2 if joined else 1
                words = []
            elif (named := ARRAY.match(self.text, self.i)) and named[named.lastindex or 0] in self.arrays:
                self.i = named.end()
                items = self.arrays[named[named.lastindex or 0]]
                spend(sum(1 + len(item.text) for item in items))
                words += items
            elif self.operators and letter in "<>":
                self.i += 1
            else:
                words.append(self._word())
        self._close(words, found)
        return found

    def _sets_array(self, word: Word) -> bool:
        """Whether a word is `NAME=` or `NAME+=` with the opening bracket directly after it."""
        return ARRAY_SET.fullmatch(word.text) is not None and not self.text[self.i - 1].isspace()

    def _array(self, name: Word) -> None:
        """Read an array's elements up to the closing bracket, over any number of lines, and set or extend the array."""
        self.i += 1
        items: list[Word] = []
        while self.i < len(self.text) and self.text[self.i] != ")":
            if self.text[self.i] == "#":
                end = self.text.find("\n", self.i)
                self.i = len(self.text) if end < 0 else end
            elif self.text[self.i].isspace() or self.text.startswith(("\\\n", "\\\r\n"), self.i):
                self.i += 1
            elif self.text[self.i] in BREAKS + "<>":
                self.i += 1  # an array cannot hold this: skip it
            else:
                items.append(self._word())
        self.i += 1
        if name.text.endswith("+="):
            self.arrays.setdefault(name.text[:-2], []).extend(items)
        elif not (self._conditional() and self.arrays.get(name.text[:-1])):
            self.arrays[name.text[:-1]] = items

    def _conditional(self) -> bool:
        """Whether the code being read may not run; a non-empty value that was set before is then kept."""
        return self.depth > 0 or self.perhaps

    def _led(self, words: list[Word]) -> list[Word]:
        """A command without leading keywords such as `then`; also tracks the depth of ifs, cases and loops."""
        first = words[0].text if words else ""
        self.depth += (first in OPENS) - (first in CLOSES and self.depth > 0)
        return self._led(words[1:]) if first in LEADS else words

    def _close(self, words: list[Word], found: list[Simple]) -> None:
        """Split assignments off a command; a command that is nothing else sets variables for those after it."""
        if not self.operators:
            if words:
                found.append(Simple(words))
            return
        own: dict[str, Word] = {}
        words = self._led(words)
        exports = bool(words) and words[0].text in ("export", "declare", "local", "readonly")
        rest = words[1:] if exports else words
        while rest and (name := ASSIGNED.match(rest[0].text)) and rest[0].quotes[: name.end()].strip() == "":
            own[name[1]] = rest[0].part(name.end())
            rest = rest[1:]
        if rest and not exports:
            found.append(Simple(rest, {**self.exported, **own} if own else self.exported))
        elif own:
            spend(len(self.exported))
            if self._conditional():
                own = {name: word for name, word in own.items() if not self._says(name)}
            self.variables |= own
            # Without `export` a server would not see it; in a file of settings it is meant to.
            self.exported = {**self.exported, **own}  # a new dict: earlier commands keep theirs

    def _says(self, name: str) -> bool:
        return name in self.variables and bool(self.variables[name].text)

    def _word(self) -> Word:
        start, quote, word = self.i, " ", _Letters(self.source)
        while self.i < len(self.text):
            letter = self.text[self.i]
            if quote == " " and (letter in " \t\r\n" or (self.operators and letter in BREAKS + "<>")):
                break
            here, self.i = self.i, self.i + 1
            if letter in INSIDE and quote in (" ", letter):
                quote = " " if quote == letter else letter
            elif run := ORDINARY.match(self.text, here):
                self.i = run.end()
                word.add(run[0], quote, here, self.i)
            elif letter == "\\" and quote != "'":
                letter, skipped = self._escaped(quote)
                if not skipped:
                    word.spelt(letter, quote, here, self.i)
            elif letter == "$" and quote != "'" and (value := self._variable(here)):
                word.splice(value)
            else:
                word.expands = word.expands or (letter in "$`" and quote != "'")
                word.add(letter, quote, here, self.i)
        return word.closed(*self.source.place(start, self.i), self.source.at[self.i], quote.strip())

    def _escaped(self, quote: str) -> tuple[str, bool]:
        """The letter that a backslash escape stands for, and whether it is skipped as a line continuation."""
        letter = self.text[self.i : self.i + 1]
        if letter == "\r" and self.text.startswith("\r\n", self.i):
            self.i += 2
            return "", True
        if letter == "\n" or letter == "":
            self.i += len(letter)
            return "", True
        if quote == '"' and letter not in '\\"$`':
            return "\\", False
        self.i += 1
        return letter, False

    def _variable(self, here: int) -> Word | None:
        found = NAME.match(self.text, here)
        value = self.variables.get(found[1] or found[3]) if found else None
        if found and found[2] is not None and (value is None or not value.text):
            value = self._default(*found.span(2))  # the variable is unset or empty
        if found and value is not None:
            self.i = found.end()
        return value

    def _default(self, start: int, end: int) -> Word | None:
        """The default of a variable if it is a name, a number or another variable's value; otherwise None."""
        body = self.source.part(start, end)
        if body.text.startswith("$"):
            word = ShellReader(body, self.variables)._word()
            return word if PLAIN.fullmatch(word.text) else None
        if not PLAIN.fullmatch(body.text):
            return None
        return Word(body, " " * len(body.text), *self.source.place(start, end))
