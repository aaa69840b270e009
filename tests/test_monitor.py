"""`augury monitor init`: what it writes, by the judgement of promtool, amtool and Grafana's own types."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from monitoring import kit
from typer.testing import CliRunner

from augury.cli import app
from augury.config.errors import ConfigError
from augury.methods.registry import METHODS
from augury.operate.knowledge_base import look_up
from augury.operate.monitor.alerts import alerts, left_out
from augury.operate.monitor.matchers import Matcher, model_matcher, quoted, read_selector
from augury.operate.monitor.regex_samples import sample
from augury.operate.monitor.settings import Settings, bound, settle

ROOT = Path(__file__).parents[1]
needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="apt install prometheus")
needs_amtool = pytest.mark.skipif(shutil.which("amtool") is None, reason="apt install prometheus-alertmanager")
EVERY_ALERT = {
    "AuguryAcceptanceLow", "AuguryNoDrafts", "AuguryDraftsNeverAccepted", "AuguryPositionWasteful", "AuguryOneApart",
    "AuguryBelowPlain", "AuguryPrefixHitsFell", "AuguryQueueGrows", "AuguryAcceptanceFallsKvClimbs", "AuguryTargetDown",
}  # fmt: skip


def augury(*words: str) -> Any:
    return CliRunner().invoke(app, ["monitor", "init", *words], prog_name="augury")


def made(**options: Any) -> Settings:
    defaults: dict[str, Any] = {
        "method": "eagle3", "k": 3, "selector": 'job="vllm"', "model_name": None, "datasource": None, "kind": "vllm",
        "min_acceptance": None, "min_position": None, "baseline_tok_s": None,
    }  # fmt: skip
    return settle(**(defaults | options))


def promtool(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["promtool", *words], capture_output=True, text=True)


def check(directory: Path) -> None:
    rules = [str(directory / "prometheus" / f"augury-{name}.yml") for name in ("recording", "alerts")]
    told = promtool("check", "rules", *rules)
    assert told.returncode == 0, told.stdout + told.stderr


def unit_tests(directory: Path) -> subprocess.CompletedProcess[str]:
    return promtool("test", "rules", str(directory / "prometheus" / "tests.yml"))


# --- the files --------------------------------------------------------------------------------------------------


def test_writes_every_file_and_says_so(tmp_path: Path) -> None:
    done = augury(str(tmp_path / "kit"))
    assert done.exit_code == 0, done.output
    written = {str(path.relative_to(tmp_path / "kit")) for path in (tmp_path / "kit").rglob("*") if path.is_file()}
    assert written == {
        "README.md", "alertmanager.example.yml", "grafana/augury-speculative-decoding.json",
        "prometheus/augury-recording.yml", "prometheus/augury-alerts.yml", "prometheus/tests.yml",
        "prometheus/prometheus.example.yml",
    }  # fmt: skip
    assert all(name in done.stdout for name in written)
    assert "left out: AuguryBelowPlain" in done.stdout


def test_does_not_overwrite_unless_forced(tmp_path: Path) -> None:
    assert augury(str(tmp_path)).exit_code == 0
    (tmp_path / "README.md").write_text("mine")
    (tmp_path / "alertmanager.example.yml").unlink()
    again = augury(str(tmp_path))
    assert again.exit_code == 2 and "--force" in again.stderr and again.stderr.count("\n") == 1
    assert (tmp_path / "README.md").read_text() == "mine" and not (tmp_path / "alertmanager.example.yml").exists()
    assert augury(str(tmp_path), "--force").exit_code == 0
    assert (tmp_path / "README.md").read_text().startswith("# Watching")


def test_json_says_what_was_written(tmp_path: Path) -> None:
    said = json.loads(augury(str(tmp_path), "--method", "mtp", "--k", "1", "--json").stdout)
    assert len(said["files"]) == 7 and all(Path(name).is_file() for name in said["files"])
    assert said["thresholds"] == {
        "min_acceptance": 0.5, "min_position_rate": 0.4, "length_one": 1.01, "good_length": 1.75, "apart": 0.3,
        "baseline_tok_s": None,
    }  # fmt: skip
    assert list(said["left_out"]) == ["AuguryBelowPlain"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--method", "nope"], "--method nope"),
        (["--method", "extract_hidden_states"], "nothing to watch"),
        (["--k", "0"], "--k 0"),
        (["--selector", "job=vllm"], "--selector"),
        (["--selector", 'job="a" zone="b"'], "--selector"),
        (["--selector", '__name__="up"'], "__name__"),
        (["--model-name", "("], "--model-name"),
        (["--model-name", "(?=x)"], "(?"),
        (["--model-name", "a$model_name"], "Grafana"),
        (["--min-acceptance", "1.5"], "--min-acceptance"),
        (["--baseline-tok-s", "-1"], "--baseline-tok-s"),
    ],
)
def test_what_is_wrong_is_one_line(words: list[str], told: str, tmp_path: Path) -> None:
    done = augury(str(tmp_path / "kit"), *words)
    assert done.exit_code == 2 and told in done.stderr and done.stderr.count("\n") == 1, done.output
    assert not (tmp_path / "kit").exists()


def test_needs_no_engine() -> None:
    code = (
        "import sys; import augury.commands.monitor, augury.operate.monitor.kit\n"
        "sys.exit(any(m in sys.modules for m in ('torch', 'transformers', 'numba')))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


# --- thresholds -------------------------------------------------------------------------------------------------


def test_thresholds_have_one_home() -> None:
    assert bound("rate-under-half", "acceptance_rate") == 0.5 == made().min_acceptance
    assert bound("signal-queue", "acceptance_length") == 2.5 == made().long_length
    assert look_up("class-apart").condition["more_than"] == made().apart
    assert made(min_acceptance=0.6, min_position=0.3).thresholds()["min_position_rate"] == 0.3


@pytest.mark.parametrize("method", [name for name in METHODS if name != "extract_hidden_states"])
def test_acceptance_is_judged_only_where_a_model_drafts(method: str) -> None:
    names = {alert.name for alert in alerts(made(method=method, baseline_tok_s=10))}
    judged = method not in ("ngram", "ngram_gpu", "suffix", "custom_class")
    assert names == (EVERY_ALERT if judged else EVERY_ALERT - {"AuguryAcceptanceLow"})
    assert set(left_out(made(method=method))) == EVERY_ALERT - {a.name for a in alerts(made(method=method))}
    assert "AuguryAcceptanceLow" in {alert.name for alert in alerts(made(method=method, min_acceptance=0.2))}


def test_every_alert_says_what_it_means_and_has_a_section() -> None:
    headings = {
        line[4:].strip().lower() for line in (ROOT / "docs/monitor.md").read_text().splitlines() if line[:4] == "### "
    }
    every = {alert.name: alert for kind in ("ours", "vllm") for alert in alerts(made(kind=kind, baseline_tok_s=10))}
    assert set(every) == EVERY_ALERT
    for alert in every.values():
        said = alert.rule()["annotations"]
        assert set(said) == {"summary", "description", "first_step", "runbook"} and all(said.values())
        assert "augury " in said["first_step"] and not re.search(r"@\w", "".join(said.values()))
        page, _, anchor = said["runbook"].partition("#")
        assert (ROOT / page).is_file() and anchor in headings
    assert headings == {name.lower() for name in EVERY_ALERT}


# --- promtool and amtool ----------------------------------------------------------------------------------------

KITS: list[dict[str, Any]] = [
    {"baseline_tok_s": 40.0},
    {"kind": "ours", "method": "ngram", "k": 1, "selector": ""},
    {
        "method": "suffix",
        "k": 32,
        "kind": "ours",
        "model_name": "Qwen/.*|meta-llama/Llama-3\\.1-8B",
        "min_position": 0.2,
    },
    {
        "method": "mtp",
        "k": 2,
        "selector": 'zone=~"eu-[0-9]+",job!="x",instance="h:1",engine="0"',
        "min_acceptance": 0.8,
    },
]


@needs_promtool
@pytest.mark.parametrize("options", KITS, ids=lambda options: options.get("method", "eagle3"))
def test_promtool_takes_the_rules_and_their_tests(options: dict[str, Any], tmp_path: Path) -> None:
    check(kit(tmp_path, **options))
    told = unit_tests(tmp_path)
    assert told.returncode == 0, told.stdout + told.stderr
    config = promtool("check", "config", str(tmp_path / "prometheus" / "prometheus.example.yml"))
    assert config.returncode == 0, config.stdout + config.stderr


BROKEN = [
    ("< 0.5 and", "< 0.1 and", "AuguryAcceptanceLow"),
    ("> 1 unless", "> 100000 unless", "AuguryNoDrafts"),
    ("<= 1.01", "< 1", "AuguryDraftsNeverAccepted"),
    ("set num_speculative_tokens to %.0f", "set num_speculative_tokens to 1%.0f", "AuguryPositionWasteful"),
    (" - 1) > 0.3", " - 1) > 0.1", "AuguryOneApart"),
    ("< 38 and", "< 4 and", "AuguryBelowPlain"),
    (" offset 1d > 0", " offset 1d > 1e9", "AuguryPrefixHitsFell"),
    ("deriv(", "-deriv(", "AuguryQueueGrows"),
    ("< -0.1", "< -0.9", "AuguryAcceptanceFallsKvClimbs"),
    ("== 0 or", "== 3 or", "AuguryTargetDown"),
]


@needs_promtool
def test_the_unit_tests_notice_a_broken_alert(tmp_path: Path) -> None:
    place = kit(tmp_path, baseline_tok_s=40.0) / "prometheus"
    good, tests = ((place / name).read_text() for name in ("augury-alerts.yml", "tests.yml"))
    assert {name for _, _, name in BROKEN} == EVERY_ALERT
    for before, after, name in BROKEN:
        rules = yaml.safe_load(good)
        (rule,) = (rule for rule in rules["groups"][0]["rules"] if rule["alert"] == name)
        changed = json.dumps(rule).replace(before, after)
        assert changed != json.dumps(rule), before
        rules["groups"][0]["rules"] = [json.loads(changed)]
        (place / "augury-alerts.yml").write_text(yaml.safe_dump(rules))
        told = some_tests(place, tests, lambda checks, name=name: any(check["alertname"] == name for check in checks))
        assert told.returncode != 0 and name in told.stdout + told.stderr, (name, told)


def some_tests(place: Path, tests: str, wanted: Any) -> subprocess.CompletedProcess[str]:
    """Those of the tests whose checks are wanted; the two that walk through a day only where they alone will do."""
    chosen = yaml.safe_load(tests)
    found = [one for one in chosen["tests"] if wanted(one["alert_rule_test"])]
    short = [one for one in found if "prefix_cache" not in str(one["input_series"])]
    days = [one for one in found if one not in short]
    chosen["tests"] = days if "AuguryPrefixHitsFell" in str(days) and len(short) < 3 else short
    (place / "some.yml").write_text(yaml.safe_dump(chosen))
    return promtool("test", "rules", str(place / "some.yml"))


@needs_amtool
def test_amtool_takes_the_example(tmp_path: Path) -> None:
    kit(tmp_path)
    told = subprocess.run(
        ["amtool", "check-config", str(tmp_path / "alertmanager.example.yml")], capture_output=True, text=True
    )
    assert told.returncode == 0 and "2 inhibit rules" in told.stdout, told


# --- odd input --------------------------------------------------------------------------------------------------


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
    told = some_tests(place, (place / "tests.yml").read_text(), lambda checks: True)
    assert told.returncode == 0, told.stdout + told.stderr
