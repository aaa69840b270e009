"""PromQL label matchers: parsed as an operator writes them, written back with uniform quoting."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable
from dataclasses import dataclass

from augury.config.errors import ConfigError
from augury.tools.monitor.regex_samples import sample

MATCHER = re.compile(
    r"""\s*(?P<label>[a-zA-Z_][a-zA-Z0-9_]*)\s*(?P<op>=~|!~|!=|=)\s*
        (?P<quoted>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|`[^`]*`)\s*(?P<end>,|$)""",
    re.VERBOSE,
)
ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-7]{3}|.)", re.DOTALL)
ESCAPED = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
# Syntax that Python accepts but RE2, which Prometheus uses, does not.
NOT_RE2 = re.compile(r"\(\?(?!:|P<[A-Za-z_][A-Za-z0-9_]*>|[ims]+[:)])|[*+?}]\+|\{,|\\$")
REPEATED = re.compile(r"\{(\d+)(?:,(\d*))?\}")
MOST_REPEATS = 1000  # RE2's limit, also on nested repetitions; here on the product of all
LETTER_ESCAPES = re.compile(r"\\([A-Za-z0-9]|[^\x00-\x7f])")
KNOWN_ESCAPES = set("dDsSwWafnrtv")
GRAFANA_VARIABLE = re.compile(r"\$(?=[A-Za-z_{])")


@dataclass(frozen=True, slots=True)
class Matcher:
    """One condition on a label."""

    label: str
    op: str
    value: str

    def __str__(self) -> str:
        """The matcher in PromQL."""
        return f"{self.label}{self.op}{quoted(self.value)}"

    def takes(self, value: str) -> bool:
        """Whether a label's value satisfies the matcher; an absent label has the value ''."""
        if self.op in ("=", "!="):
            return (value == self.value) == (self.op == "=")
        return (re.fullmatch(self.value, value, re.DOTALL) is not None) == (self.op == "=~")


def quoted(value: str) -> str:
    """A quoted string for PromQL and for the series in promtool's tests."""
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def read_selector(text: str) -> list[Matcher]:
    """Parse the matchers of a selector such as `job="vllm", zone=~"eu-.*"`, with or without braces."""
    inner = text.strip()
    if inner.startswith("{") and inner.endswith("}"):
        inner = inner[1:-1].strip()
    found, at = [], 0
    while at < len(inner):
        match = MATCHER.match(inner, at)
        if match is None:
            raise ConfigError(
                f"--selector {text!r}: cannot read {inner[at : at + 40]!r}; write label matchers with commas, "
                """for example 'job="vllm",zone=~"eu-.*"'."""
            )
        if match["label"] == "__name__":
            raise ConfigError("--selector: the rules name their metrics themselves; leave __name__ out.")
        found.append(checked(Matcher(match["label"], match["op"], _unquoted(match["quoted"], text)), "--selector"))
        at = match.end()
    return found


def model_matcher(pattern: str) -> Matcher:
    """The matcher of `--model-name REGEX`."""
    return checked(Matcher("model_name", "=~", pattern), "--model-name")


def checked(matcher: Matcher, option: str) -> Matcher:
    """The matcher itself; a ConfigError if Prometheus or Grafana would refuse or misread it."""
    value = matcher.value
    if any("\ud800" <= letter <= "\udfff" for letter in value) or "\x00" in value:
        raise ConfigError(f"{option}: {value!r} is no text in UTF-8.")
    if GRAFANA_VARIABLE.search(value):
        raise ConfigError(f"{option}: Grafana would take the $ in {value!r} for a variable; write [$] in a regex.")
    if "~" in matcher.op:
        _check_regex(value, option)
    return matcher


def _check_regex(pattern: str, option: str) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # Python warns about patterns that other engines read differently
            re.compile(pattern, re.DOTALL)
    except (re.error, FutureWarning, DeprecationWarning, OverflowError, RecursionError) as error:
        raise ConfigError(f"{option}: {pattern!r} is no regular expression: {error}.") from None
    bare = pattern.replace("\\\\", "")
    odd = NOT_RE2.search(bare)
    unknown = [name for name in LETTER_ESCAPES.findall(bare) if name not in KNOWN_ESCAPES]
    if odd or unknown:
        what = odd.group() if odd else f"\\{unknown[0]}"
        raise ConfigError(f"{option}: {pattern!r} has {what!r}, which Prometheus' regular expressions do not know.")
    total = 1
    for low, high in REPEATED.findall(bare):
        total *= max(1, int(low), int(high or 0))
    if total > MOST_REPEATS:
        raise ConfigError(f"{option}: {pattern!r} repeats more than {MOST_REPEATS} times, which Prometheus refuses.")


def _unquoted(word: str, text: str) -> str:
    if word[0] == "`":
        return word[1:-1].replace("\r", "")  # Go drops carriage returns from raw strings
    return ESCAPE.sub(lambda found: _letter(found.group(1), word[0], text), word[1:-1])


def _letter(escape: str, quote: str, text: str) -> str:
    """The character that a PromQL escape stands for."""
    if escape[0] in "xuU" and len(escape) > 1:
        number = int(escape[1:], 16)
    elif len(escape) == 3:
        number = int(escape, 8)
    elif escape in ESCAPED or escape in ("\\", quote):
        return ESCAPED.get(escape, escape)
    else:
        raise ConfigError(f"--selector {text!r}: PromQL knows no \\{escape} in a string; write \\\\ for a backslash.")
    if number > 0x10FFFF or (escape[0] not in "uU" and number > 0x7F):  # a single byte that is not a character
        raise ConfigError(f"--selector {text!r}: \\{escape} is no character; write it as it is.")
    return chr(number)


def example_labels(matchers: Iterable[Matcher]) -> dict[str, str]:
    """Labels that satisfy all matchers, for the series of the unit tests; a ConfigError if none can be found."""
    by_label: dict[str, list[Matcher]] = {}
    for matcher in matchers:
        by_label.setdefault(matcher.label, []).append(matcher)
    return {label: value for label, every in by_label.items() if (value := _example(label, every))}


def _example(label: str, every: list[Matcher]) -> str:
    positive = [m.value if m.op == "=" else sample(m.value) for m in every if m.op in ("=", "=~")]
    for candidate in [*positive, "a", "toy", "x1", "example.com:8000", ""]:
        if all(matcher.takes(candidate) for matcher in every):
            return candidate
    raise ConfigError(
        f"no value of {label} could be thought of that meets {', '.join(map(str, every))}, so the unit tests of the "
        "rules cannot be written; say it with =, or more simply."
    )
