"""`augury monitor init`: its rules, their unit tests and its examples, by the judgement of promtool and amtool."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from monitoring import (
    EVERY_ALERT,
    KITS,
    as_yaml,
    check,
    kit,
    needs_amtool,
    needs_promtool,
    promtool,
    some_tests,
    unit_tests,
)


@needs_promtool
@pytest.mark.parametrize("options", KITS, ids=lambda options: options.get("method", "eagle3"))
def test_promtool_takes_the_rules_and_their_tests(options: dict[str, Any], tmp_path: Path) -> None:
    check(kit(tmp_path, **options))
    told = unit_tests(tmp_path)
    assert told.returncode == 0, told.stdout + told.stderr
    config = promtool("check", "config", str(tmp_path / "prometheus" / "prometheus.example.yml"))
    assert config.returncode == 0, config.stdout + config.stderr


BROKEN = [
    ("< 0.32 and", "< 0.01 and", "AuguryAcceptanceLow"),
    ("< 0.7", "< 0.99", "AuguryAcceptanceLow"),
    (" or (augury", " and (augury", "AuguryAcceptanceLow"),
    ("{{ if lt", "{{ if gt", "AuguryAcceptanceLow"),
    ("and on (job, model_name, instance, engine)", "and on (job)", "AuguryOneApart"),
    ("> 1 unless", "> 100000 unless", "AuguryNoDrafts"),
    ("unless on (job, model_name, instance, engine)", "unless on (job, model_name)", "AuguryNoDrafts"),
    ("unless on (job, model_name, instance, engine)", "unless on (job, model_name)", "AuguryOneWithoutDrafts"),
    ("<= 1.01", "< 1", "AuguryDraftsNeverAccepted"),
    ("num_speculative_tokens %.0f", "num_speculative_tokens 1%.0f", "AuguryPositionWasteful"),
    (" > 0.3", " > 0.9", "AuguryOneApart"),
    ("quantile by (job, model_name) (0.5,", "quantile by (job) (0.5,", "AuguryOneApart"),
    ("1 - (", "(", "AuguryOneApart"),
    ("< 38 and", "< 4 and", "AuguryBelowPlain"),
    (" offset 1d > 0", " offset 1d > 1e9", "AuguryPrefixHitsFell"),
    ("deriv(", "-deriv(", "AuguryQueueGrows"),
    ("< -0.1", "< -0.9", "AuguryAcceptanceFallsKvClimbs"),
    ("== 0 or", "== 3 or", "AuguryTargetDown"),
]


@needs_promtool
def test_the_unit_tests_notice_a_broken_alert(tmp_path: Path) -> None:
    trained = kit(tmp_path / "trained", baseline_tok_s=40.0) / "prometheus"
    looked_up = kit(tmp_path / "looked_up", method="ngram") / "prometheus"
    assert {name for _, _, name in BROKEN} == EVERY_ALERT
    written = {
        place: [yaml.safe_load((place / name).read_text()) for name in ("augury-alerts.yml", "tests.yml")]
        for place in (trained, looked_up)
    }
    for before, after, name in BROKEN:
        place = looked_up if name == "AuguryOneWithoutDrafts" else trained
        good, tests = written[place]
        (rule,) = (rule for rule in good["groups"][0]["rules"] if rule["alert"] == name)
        changed = json.dumps(rule).replace(before, after)
        assert changed != json.dumps(rule), before
        (group,) = good["groups"]
        (place / "augury-alerts.yml").write_text(as_yaml({"groups": [group | {"rules": [json.loads(changed)]}]}))
        told = some_tests(place, tests, name)
        assert told.returncode != 0 and name in told.stdout + told.stderr, (name, told)


@pytest.mark.parametrize(("method", "named"), [("eagle3", "EAGLE-3 curve"), ("suffix", "look-up in open chat")])
def test_curves_of_good_health_are_among_the_tests(method: str, named: str, tmp_path: Path) -> None:
    place = kit(tmp_path, method=method) / "prometheus"
    (one,) = (test for test in yaml.safe_load((place / "tests.yml").read_text())["tests"] if named in test["name"])
    fired = [check["alertname"] for check in one["alert_rule_test"] if check["exp_alerts"]]
    assert fired == (["AuguryPositionWasteful"] if method == "eagle3" else []) and len(one["alert_rule_test"]) > 5


@needs_promtool
def test_the_unit_tests_notice_an_alert_for_every_exporter(tmp_path: Path) -> None:
    place = kit(tmp_path, selector="") / "prometheus"
    good = (place / "augury-alerts.yml").read_text()
    broken = re.sub(r"up == 0 and on .*", "up == 0", good)
    assert broken != good
    (place / "augury-alerts.yml").write_text(broken)
    told = some_tests(place, yaml.safe_load((place / "tests.yml").read_text()), "AuguryTargetDown")
    assert told.returncode != 0 and "10.0.0.9:9100" in told.stdout + told.stderr


@needs_amtool
def test_amtool_takes_the_example(tmp_path: Path) -> None:
    kit(tmp_path)
    told = subprocess.run(
        ["amtool", "check-config", str(tmp_path / "alertmanager.example.yml")], capture_output=True, text=True
    )
    assert told.returncode == 0 and "4 inhibit rules" in told.stdout, told
