"""`augury monitor init` with odd input: selectors, regular expressions and names as people and programs write them."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from monitoring import check, kit, made, needs_promtool, promtool, some_tests

from augury.config.errors import ConfigError
from augury.tools.monitor.alerts import alerts
from augury.tools.monitor.matchers import Matcher, model_matcher, quoted, read_selector
from augury.tools.monitor.regex_samples import sample


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r'job="a\"b\\c\n"', 'a"b\\c\n'),
        (r"job='a\'b\"'", None),
        ("job='a\"b'", 'a"b'),
        ("job=`a\\d\"'`", "a\\d\"'"),
        (r'job="\x41\u00e9\101"', "AéA"),
        ('{job = "x" ,}', "x"),
        ('job=""', ""),
    ],
)
def test_selectors_are_read_as_promql_reads_them(text: str, value: str | None) -> None:
    if value is None:
        with pytest.raises(ConfigError, match="PromQL knows no"):
            read_selector(text)
        return
    assert read_selector(text) == [Matcher("job", "=", value)]
    assert read_selector(str(Matcher("job", "=", value))) == [Matcher("job", "=", value)]


label_values = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=12)


@given(label_values)
def test_what_is_quoted_is_read_again(value: str) -> None:
    try:
        assert read_selector(f"a={quoted(value)}, b!={quoted(value)}") == [
            Matcher("a", "=", value),
            Matcher("b", "!=", value),
        ]
    except ConfigError as error:
        assert "Grafana" in str(error) and "$" in value


PIECES = [
    "a", "Z", "0", ".", "-", "/", "é", " ", '"', "\\.", "\\d", "\\w", "[a-c]", "[^/]", "(x|y)", "(?:z)", "|", "*", "+",
    "?", "{2}", "{1,3}", "{", "}", "[", "]", "(", ")", "^", "$", "\\", "'", "`", "%", "{{", "\n", "(?i)", "[[:alpha:]]",
    "\\b", "\\_", "(?P<n>q)", "&&", "--", "\\Q", "\\é", "{0}", "*?", "\\pL",
]  # fmt: skip
patterns = st.lists(st.sampled_from(PIECES), min_size=1, max_size=6).map("".join)


@given(patterns)
@settings(max_examples=400)
def test_samples_match_their_pattern(pattern: str) -> None:
    try:
        matcher = model_matcher(pattern)
    except ConfigError:
        return
    text = sample(pattern)
    anchored_oddly = "^" in pattern[1:] or "$" in pattern[:-1]
    assert matcher.takes(text) or anchored_oddly or "(?i)" in pattern or "[" in pattern, text


@needs_promtool
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(patterns, label_values, st.sampled_from(["=", "!=", "=~", "!~"])), min_size=8, max_size=8))
def test_what_is_accepted_promtool_accepts(tmp_path: Path, cases: list[tuple[str, str, str]]) -> None:
    """Prometheus has its own regular expressions and quoting; what passes our checks must pass its."""
    groups = []
    for number, (pattern, value, op) in enumerate(cases):
        try:
            matchers = f"job{op}{quoted(pattern if '~' in op else value)},zone!={quoted(value)}"
            chosen = made(selector=matchers, model_name=pattern)
        except ConfigError:
            continue
        rules = [alert.rule() for alert in alerts(chosen)]
        groups.append({"name": f"g{number}", "rules": rules})
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": groups}))
    told = promtool("check", "rules", str(file))
    assert told.returncode == 0, (cases, told.stderr, told.stdout)


@needs_promtool
@pytest.mark.parametrize("model", ['org/Model "x"', "a\\b", "a`b{{ .x }}", "é @where %q", "naïve|x"])
def test_odd_names_survive_templates_and_tests(model: str, tmp_path: Path) -> None:
    """A model's name goes through YAML, PromQL, Go's templates and back into the text of an alert."""
    kit(tmp_path, selector=f'job="vllm",model_name={quoted(model)}', k=2)
    check(tmp_path)
    place = tmp_path / "prometheus"
    told = some_tests(place, yaml.safe_load((place / "tests.yml").read_text()))
    assert told.returncode == 0, told.stdout + told.stderr
