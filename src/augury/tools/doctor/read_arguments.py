"""Reads a found command into its arguments: flags, the keys of speculative_config, and what is wrong with both."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

from augury.config.errors import ConfigError
from augury.methods.recognise import stands_for
from augury.tools.doctor.arguments import Flag, ReadArguments, WrittenKey, whole_number
from augury.tools.doctor.flags import OLD_FLAGS, SHORT, SPECULATIVE, SWITCHES, TAKES_SEVERAL, near
from augury.tools.doctor.found.command import FoundCommand
from augury.tools.doctor.found.mapped import Mapped
from augury.tools.doctor.found.places import Edit, Node, drop
from augury.tools.doctor.found.shell_words import Word, plain_words
from augury.tools.doctor.problems import Problem, json_kind, read_object
from augury.tools.doctor.untold import set_aside

ONLY_IF_SET = re.compile(r"\$\{\w+:?\+")  # `${EAGER:+--enforce-eager}`: empty if the variable is unset
NO_CONFIGURATION = ("", "None", "null")  # values with which vLLM does not speculate
DASHES = "\u2013\u2014\u2015\u2212"  # longer than the hyphen on the keyboard
MOST_WORDS = 1_000  # of one command, or keys of one file; vLLM has some two hundred flags


def read_arguments(found: FoundCommand) -> ReadArguments:
    """Read a command's words, or a file's settings."""
    result = ReadArguments(found)
    count = max(len(found.words), len(found.settings.members) if found.settings is not None else 0)
    if count > MOST_WORDS:
        raise ConfigError(f"a command of {count:,} words cannot be examined; {MOST_WORDS:,} are the most.")
    if found.settings is not None and found.bare:
        _take_object(result, found.settings)
    elif found.settings is not None:
        _read_settings(result, found.settings)
    elif found.bare:
        _take_word(result, found.words[0], [])
    else:
        for word in found.words:
            if word.unclosed:
                result.problems.append(Problem("quote-open", word.start, word.start + 1, {"text": word.unclosed}))
        _read_words(result, _split(result, found.words))
        _fold_old_flags(result)
    set_aside(result)
    return result


def _fold_old_flags(result: ReadArguments) -> None:
    """Offer an edit that replaces the old flags with the one object whose keys they became."""
    old = [flag for flag in result.flags if flag.name in OLD_FLAGS]
    told = [problem for problem in result.problems if problem.name == "flag-gone"]
    if not old or not told or result.whole is not None or not all(flag.shell for flag in old):
        return
    keys = {name: setting.value for name, setting in result.keys.items() if setting.flag in old}
    first, *others = old
    written = f"--speculative-config {shlex.quote(json.dumps(keys))}"
    outer = first.word.body.encode(written) if first.word is not None else written
    told[0].edits = [Edit(first.start, first.stop, outer), *(edit for flag in others for edit in flag.removal())]


def _split(result: ReadArguments, words: list[Word]) -> list[Word]:
    """Split elements of a list that hold a flag and its value in one, which no shell would do; each is a problem."""
    out = []
    for word in words:
        if not word.shell and re.match(r"--?[a-zA-Z][\w.-]*\s", word.text):
            flag = word.text.split()[0]
            result.problems.append(Problem("args-not-split", word.start, word.end, {"flag": flag}))
            gap = re.search(r"\s+", word.text)
            assert gap is not None
            out += [word.part(0, gap.start()), *_behind(word.part(gap.end()))]
        else:
            out.append(word)
    return out


def _behind(rest: Word) -> list[Word]:
    """The words that follow the flag in such an element: one quoted text, one object, or several words."""
    text = rest.text.rstrip()
    if len(text) > 1 and text[0] in "'\"" and text[-1] == text[0]:
        return [rest.part(1, len(text) - 1)]
    if text.startswith("{"):
        return [rest]
    return [Word(one.body, one.quotes, one.start, one.end, False) for one in plain_words(rest.body)]


def _read_words(result: ReadArguments, words: list[Word]) -> None:
    i = 0
    while i < len(words):
        word = words[i]
        i += 1
        if not _is_flag(word.text):
            if not ONLY_IF_SET.match(word.text):
                result.positionals.append(word)
            continue
        name, sign, _ = word.text.partition("=")
        value = word.part(len(name) + 1) if sign else None
        plain = _canonical(_straight(name))
        if value is None and plain not in SWITCHES and i < len(words) and not _is_flag(words[i].text):
            value = words[i]
            i += 1
        start, end = word.body.place(0, len(name))
        if (straight := _straight(name)) != name:
            says, edits = {"flag": name, "meant": straight}, [Edit(start, end, straight)]
            result.problems.append(Problem("flag-misspelt", start, end, says, edits))
        said, stop = (value.text, value.end) if value else (True, word.end)
        flag = Flag(plain, name, start, end, value, said, stop, shell=word.shell)
        if plain in TAKES_SEVERAL:
            more = [word.text for word in words[i:]]
            count = next((n for n, text in enumerate(more) if _is_flag(text)), len(more))
            flag = flag._replace(value=[flag.value, *more[:count]], stop=words[i + count - 1].end)
            i += count
        i += _take_flag(result, flag, words[i:])


def _is_flag(text: str) -> bool:
    return re.match(rf"(?:--?|[{DASHES}]{{1,2}})[a-zA-Z]", text) is not None


def _straight(name: str) -> str:
    """A flag with the two dashes restored that a word processor, a wiki or a chat window merged into one."""
    return "--" + name.lstrip(DASHES) if name[0] in DASHES else name


def _canonical(name: str) -> str:
    if name in SHORT:
        return SHORT[name]
    head, dot, tail = name.lstrip("-").partition(".")
    head = SHORT.get(name.partition(".")[0], head.replace("_", "-"))
    return head + dot + tail.replace("-", "_")


def _take_flag(result: ReadArguments, flag: Flag, rest: list[Word]) -> int:
    """Record a flag; returns how many of the words after it belong to its split value."""
    before = result.flag(flag.name)
    result.flags.append(flag)
    name = flag.name
    if flag.word is None and (name in SPECULATIVE or name in OLD_FLAGS) and name not in SWITCHES:
        result.problems.append(Problem("value-missing", flag.start, flag.end, {"flag": flag.written}))
        return 0
    if name == "speculative-config":
        if before is not None:
            says = {"flag": flag.written}
            result.problems.append(Problem("flag-twice", before.start, before.end, says, before.removal()))
            result.keys.clear()
        assert flag.word is not None
        if flag.word.text in NO_CONFIGURATION and not flag.word.expands:
            return 0
        return _take_word(result, flag.word, rest) - 1
    if name.startswith("speculative-config."):
        _take_key(result, flag, name.partition(".")[2], flag.value)
    elif name in SPECULATIVE:
        _take_key(result, flag, SPECULATIVE[name], flag.value)
    elif name in OLD_FLAGS:
        _take_key(result, flag, OLD_FLAGS[name], flag.value)
        result.problems.append(Problem("flag-gone", flag.start, flag.end, {"flag": flag.written}))
    elif close := near(name):
        _misspelt(result, flag, close)
    return 0


def _misspelt(result: ReadArguments, flag: Flag, close: str) -> None:
    edits = []
    if flag.word is not None and (close != "speculative-config" or flag.word.text.lstrip().startswith("{")):
        edits = [Edit(flag.start, flag.end, f"--{close}")]
        if close == "speculative-config":
            _take_word(result, flag.word, [])
        elif close in SPECULATIVE:
            _take_key(result, flag, SPECULATIVE[close], flag.value)
    name = "flag-abbreviated" if close.startswith(flag.name) else "flag-misspelt"
    says = {"flag": flag.written, "meant": f"--{close}"}
    result.problems.append(Problem(name, flag.start, flag.end, says, edits))


def _take_key(result: ReadArguments, flag: Flag, path: str, value: Any) -> None:
    """Record a key that has a flag of its own: a shortcut or `-sc.key`."""
    result.speculates = True
    name, dot, inner = path.rstrip("+").partition(".")
    value = value if name in ("method", "model") else _value(value)
    if flag.name.startswith("speculative-model") and isinstance(value, str) and (meant := stands_for(value)):
        name, value = "method", meant.name
    if path.endswith("+"):
        value = [_value(part) for part in str(flag.value).split(",")]
    if dot:
        value = {inner: value}
    if name in result.keys:
        says = {"flag": flag.written, "key": name}
        result.problems.append(Problem("given-twice", flag.start, flag.stop, says, flag.removal()))
        return
    result.keys[name] = WrittenKey(value, flag.start, flag.stop, flag=flag)


def _value(text: Any) -> Any:
    if not isinstance(text, str):
        return text
    number = whole_number(text)
    try:
        return json.loads(text) if number is None or text.isdigit() else number
    except (ValueError, RecursionError):
        return text


def _take_word(result: ReadArguments, word: Word, rest: list[Word]) -> int:
    """Read the JSON of speculative_config; returns how many words it took."""
    result.speculates = True
    read = read_object(word, rest)
    if isinstance(read, Node):
        _take_object(result, read)
        return 1
    result.problems.append(read.problem)
    result.readable = read.value is not None
    for name, value in (read.value or {}).items():
        _file(result, name.replace("-", "_"), WrittenKey(value, read.problem.start, read.problem.end))
    return read.words


def _take_object(result: ReadArguments, node: Node) -> None:
    result.speculates, result.whole = True, node
    if node.untold:
        result.partial = True
        result.problems.append(Problem("json-has-variable", *node.place, {"text": node.untold}))
    seen: set[str] = set()
    for member in node.members:
        name = member.name.replace("-", "_")
        start, end = node.origin.body.place(member.start, member.node.end)
        if name in seen:
            edits = drop(node, member)
            result.problems.append(Problem("key-twice", start, end, {"key": member.name}, edits))
            continue
        seen.add(name)
        _file(result, name, WrittenKey(member.node.value, start, end, node, member))


def _file(result: ReadArguments, name: str, setting: WrittenKey) -> None:
    """Record a key of the object, and a problem if an earlier flag has already set it."""
    earlier = result.keys.get(name)
    if earlier is not None and earlier.flag is not None:
        flag = earlier.flag
        result.problems.append(
            Problem("given-twice", flag.start, flag.stop, {"flag": flag.written, "key": name}, flag.removal())
        )
    result.keys[name] = setting


def _read_settings(result: ReadArguments, node: Node) -> None:
    """Read a file of engine arguments, as vLLM's --config takes it, or the keywords of a Python call."""
    for member in node.members:
        name = member.name.replace("_", "-")
        start, end = node.origin.body.place(member.start, member.key_end)
        stop = member.node.place[1]
        flag = Flag(name, member.name, start, end, None, member.node.value, stop, node, member)
        result.flags.append(flag)
        value = member.node.value
        if name == "speculative-config" and isinstance(value, dict):
            _take_object(result, member.node)
        elif name == "speculative-config" and isinstance(value, str):
            place = member.node.place
            body = Mapped(value, (place[0],) * (len(value) + 1))
            _take_word(result, Word(body, " " * len(value), *place, False), [])
            result.whole = None  # its letters cannot be mapped to the source
            for setting in result.keys.values():
                setting.node = setting.member = None
            result.problems.append(Problem("json-in-yaml", *place))
        elif name == "speculative-config" and value is not None:
            place = member.node.place
            result.problems.append(Problem("json-not-object", *place, {"kind": json_kind(value)}))
        elif name in OLD_FLAGS and node.style == "call":
            _take_key(result, flag, OLD_FLAGS[name], value)
            result.problems.append(Problem("flag-gone", start, end, {"flag": member.name}))
        elif name in SPECULATIVE:
            if SPECULATIVE[name] in result.keys:
                says = {"flag": member.name, "key": SPECULATIVE[name]}
                result.problems.append(Problem("given-twice", start, stop, says))
            else:
                result.keys[SPECULATIVE[name]] = WrittenKey(value, start, stop, node, member)
                result.speculates = True
