"""`augury monitor init`: what it writes and what it refuses."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from monitoring import EVERY_ALERT, KITS, kit, made, needs_promtool, unit_tests
from typer.testing import CliRunner

from augury.cli import app
from augury.methods.registry import METHODS
from augury.tools.knowledge.base import look_up
from augury.tools.knowledge.conditions import KnownFacts, holds
from augury.tools.monitor.alerts import Alert, alerts, left_out
from augury.tools.monitor.settings import bound, lowest
from augury.tools.monitor.worlds import World

LOOK_UPS = ("ngram", "ngram_gpu", "suffix")


def augury(*words: str) -> Any:
    return CliRunner().invoke(app, ["monitor", "init", *words], prog_name="augury")


# --- the files --------------------------------------------------------------------------------------------------


def test_writes_every_file_and_says_so(tmp_path: Path) -> None:
    done = augury(str(tmp_path / "kit"))
    assert done.exit_code == 0, done.output
    written = {str(path.relative_to(tmp_path / "kit")) for path in (tmp_path / "kit").rglob("*") if path.is_file()}
    assert written == {
        "README.md",
        "RUNBOOK.md",
        "alertmanager.example.yml",
        "grafana/augury-speculative-decoding.json",
        "prometheus/augury-recording.yml",
        "prometheus/augury-alerts.yml",
        "prometheus/tests.yml",
        "prometheus/prometheus.example.yml",
    }
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
    assert len(said["files"]) == 8 and all(Path(name).is_file() for name in said["files"])
    assert said["thresholds"] == {
        "min_acceptance": 0.48,
        "first_position_beside": 0.7,
        "first_position_alone": 0.5,
        "min_position_rate": 0.4,
        "length_one": 1.01,
        "good_length": 1.8,
        "apart": 0.3,
        "baseline_tok_s": None,
    }
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
        (["--runbook-url", "wiki/runbook"], "--runbook-url"),
        (["--runbook-url", "https://x/{{ . }}"], "--runbook-url"),
    ],
)
def test_what_is_wrong_is_one_line(words: list[str], told: str, tmp_path: Path) -> None:
    done = augury(str(tmp_path / "kit"), *words)
    assert done.exit_code == 2 and told in done.stderr and done.stderr.count("\n") == 1, done.output
    assert not (tmp_path / "kit").exists()


def test_needs_no_engine() -> None:
    code = (
        "import sys; import augury.tools.monitor.command, augury.tools.monitor.kit\n"
        "sys.exit(any(m in sys.modules for m in ('torch', 'transformers', 'numba')))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


# --- thresholds -------------------------------------------------------------------------------------------------


def test_thresholds_have_one_home() -> None:
    assert made().first_beside == bound("rate-under-half", "first_position_rate") == 0.7
    assert made().first_alone == bound("first-position-low", "first_position_rate") == 0.5
    assert made(method="medusa").min_acceptance is None, "augury check does not fail it by its rate either"
    assert bound("rate-under-half", "acceptance_rate") == 0.5 and made().min_acceptance == 0.32
    assert made(method="mtp", k=1).min_acceptance == 0.48, "a fifth under the band at its K"
    assert bound("signal-queue", "acceptance_length") == 2.5 == made().long_length
    assert look_up("class-apart").condition["more_than"] == made().apart
    assert made(min_acceptance=0.6, min_position=0.3).thresholds()["min_position_rate"] == 0.3


CURVES = [
    [0.93, 0.88, 0.83, 0.22, 0.11, 0.05, 0.02],
    [0.73, 0.52, 0.35],
    [0.6, 0.3, 0.2],
    [0.45, 0.4, 0.3],
    [0.69, 0.4, 0.3],
    [0.71, 0.3, 0.2],
    [0.9, 0.8, 0.7],
    [0.3],
    [0.6],
]


@needs_promtool
@pytest.mark.parametrize("method", ["eagle3", "medusa"])
def test_the_alert_fires_exactly_where_check_objects(method: str, tmp_path: Path) -> None:
    """Each curve as check sees it, and as Prometheus does: one law in both."""
    tests = []
    for number, curve in enumerate(CURVES):
        facts = {"method": method, "acceptance_rate": sum(curve) / len(curve), "first_position_rate": curve[0]}
        facts["fault_rate"] = lowest(METHODS[method], 3)  # of the kit's K
        laws = [look_up(name).condition for name in ("rate-under-half", "first-position-low")]
        objects = any(holds(law, KnownFacts(facts)) for law in laws)
        labels = {"job": "vllm", "instance": "a:1", "model_name": "toy", "engine": "0"}
        world = World(labels, ours=False).traffic(curve, 60)
        query = {"expr": 'count(ALERTS{alertname="AuguryAcceptanceLow",alertstate="firing"}) or vector(0)'}
        sample = {"labels": "{}", "value": int(objects)}
        tests.append(
            {
                "name": str(number),
                "interval": "1m",
                "input_series": world.series,
                "promql_expr_test": [query | {"eval_time": "40m", "exp_samples": [sample]}],
            }
        )
    place = kit(tmp_path, method=method, selector="") / "prometheus"
    written = yaml.safe_load((place / "tests.yml").read_text()) | {"tests": tests}
    (place / "tests.yml").write_text(yaml.safe_dump(written))
    told = unit_tests(tmp_path)
    assert told.returncode == 0, told.stdout + told.stderr


@pytest.mark.parametrize("method", [name for name in METHODS if name != "extract_hidden_states"])
def test_acceptance_is_judged_only_where_a_model_drafts(method: str) -> None:
    names = {alert.name for alert in alerts(made(method=method, baseline_tok_s=10))}
    from_text = (*LOOK_UPS, "hybrid")  # a hybrid may have a model, but need not
    unjudged = {"AuguryAcceptanceLow"} if method in (*from_text, "custom_class") else set()
    unjudged |= {"AuguryPositionWasteful"} if method in from_text else {"AuguryOneWithoutDrafts"}
    assert names == EVERY_ALERT - unjudged
    assert set(left_out(made(method=method, baseline_tok_s=10))) == unjudged - {"AuguryOneWithoutDrafts"}
    asked = made(method=method, min_acceptance=0.2, min_position=0.1)
    assert {"AuguryAcceptanceLow", "AuguryPositionWasteful"} <= {alert.name for alert in alerts(asked)}


def test_every_alert_says_what_it_means_and_has_a_section(tmp_path: Path) -> None:
    written: dict[str, Alert] = {}
    for number, options in enumerate(KITS[:3]):
        chosen = {alert.name: alert for alert in alerts(made(**options))}
        headings = headings_of(kit(tmp_path / str(number), **options) / "RUNBOOK.md")
        assert headings == [name for name in headings if name in chosen] and set(headings) == set(chosen)
        written |= chosen
    assert set(written) == EVERY_ALERT
    for alert in written.values():
        said = alert.rule()["annotations"]
        assert set(said) == {"summary", "description", "first_step", "runbook"} and all(said.values())
        assert "augury " in said["first_step"] and not re.search(r"@\w", "".join(said.values()))
        assert said["runbook"] == f"RUNBOOK.md#{alert.name.lower()}"


def headings_of(page: Path) -> list[str]:
    return [line[3:].strip() for line in page.read_text().splitlines() if line[:3] == "## "]


def test_a_published_runbook_is_linked(tmp_path: Path) -> None:
    base = "https://wiki.example/@where/runbook"
    assert augury(str(tmp_path), "--runbook-url", base).exit_code == 0
    rules = yaml.safe_load((tmp_path / "prometheus/augury-alerts.yml").read_text())["groups"][0]["rules"]
    links = {rule["alert"]: rule["annotations"]["runbook_url"] for rule in rules}
    assert links["AuguryNoDrafts"] == f"{base}#augurynodrafts" and "runbook" not in rules[0]["annotations"]


def test_a_decay_is_a_notice_and_no_reason_to_stop() -> None:
    """augury check passes vLLM's own EAGLE-3 curve; a look-up's late positions say nothing at all."""
    (trained,) = (alert for alert in alerts(made()) if alert.name == "AuguryPositionWasteful")
    assert trained.severity == "info" and "seldom pays" in trained.summary and "healthy" in trained.meaning
    (asked,) = (a for a in alerts(made(method="ngram", min_position=0.1)) if a.name == "AuguryPositionWasteful")
    assert "without speculation" in trained.templates["k"] and "without speculation" not in asked.templates["k"]


@pytest.mark.parametrize(
    ("selector", "direct"),
    [
        ('job="vllm"', True),
        ('instance=~"gpu-.*"', True),
        ("", False),
        ("{}", False),
        ('engine="0"', False),
        ('job=~".*"', False),
        ('job!="node"', False),
        ('zone="eu"', False),
    ],
)
def test_only_servers_of_models_are_ever_down(selector: str, direct: bool) -> None:
    (down,) = (alert for alert in alerts(made(selector=selector)) if alert.name == "AuguryTargetDown")
    assert ("absent(" in down.expr) == direct and ("vllm:generation_tokens_total" in down.expr) != direct
