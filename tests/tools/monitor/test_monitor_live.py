"""The kit at work: a real Prometheus with its rules on our server and on a stand-in for vLLM's, and its dashboard."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from monitoring import Prometheus, StandIn, kit, prometheus, stand_in
from served import Served, served

pytestmark = pytest.mark.skipif(shutil.which("prometheus") is None, reason="apt install prometheus")

ODD = 'org/Model "x"\\8B'
DASHBOARD = "grafana/augury-speculative-decoding.json"


def dashboard(directory: Path) -> dict[str, Any]:
    return dict(json.loads((directory / DASHBOARD).read_text()))


def expressions(board: dict[str, Any]) -> list[str]:
    return [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]


def substituted(expression: str, model: str) -> str:
    """As Grafana fills variables in: a chosen value is escaped for a regular expression inside of quotes."""
    escaped = re.sub(r"[$^*{}\[\]'+?.()|]", r"\\\\\g<0>", model.replace("\\", "\\" * 4)).replace('"', '\\"')
    found = expression.replace("$model_name", escaped).replace("$engine", ".*").replace("$interval", "1m")
    assert "$" not in found
    return found


def healthy(running: Prometheus) -> None:
    """Every rule has been evaluated, none with an error."""
    running.until(lambda: all(rule["health"] != "unknown" for rule in running.rules()))
    assert [rule for rule in running.rules() if rule["health"] != "ok" or rule.get("lastError")] == []


# --- our server ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(toy_model: Path) -> Iterator[Served]:
    with served(toy_model, "--served-model-name", "toy") as running:
        yield running


@pytest.fixture(scope="module")
def ours(server: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Prometheus, Path, float]]:
    place = tmp_path_factory.mktemp("ours")
    directory = kit(place / "kit", kind="ours", method="ngram", k=4, selector='job="augury"')
    with prometheus(directory, place / "prometheus", "augury", [f"127.0.0.1:{server.port}"]) as running:
        few = {"ignore_eos": True, "allowed_token_ids": [65, 66, 67], "temperature": 0.5, "seed": 1, "max_tokens": 150}
        busy = "max_over_time(vllm:num_requests_running[1m]) > 0"
        for number in range(40):  # the second time its prompts are in the prefix cache; then until a scrape meets one
            if number > 1 and running.ask(busy):
                break
            prompts = ["abcabc" * 8, "ABAB" * 10, "The cat sat. The cat"]
            server.http.post("/v1/completions", json={"prompt": prompts, **few}).raise_for_status()
        server.until_idle()
        counted = server.metrics()
        rate = (
            counted["vllm:spec_decode_num_accepted_tokens_total"] / counted["vllm:spec_decode_num_draft_tokens_total"]
        )
        drafted = counted["vllm:spec_decode_num_draft_tokens_total"]
        running.until(
            lambda: (
                [s["value"][1] for s in running.ask("vllm:spec_decode_num_draft_tokens_total")] == [str(int(drafted))]
            )
        )
        running.until(lambda: running.ask("augury:model_position_acceptance:ratio_rate5m"))
        yield running, directory, rate


def test_the_rules_say_what_our_server_counted(ours: tuple[Prometheus, Path, float], server: Served) -> None:
    running, _, rate = ours
    healthy(running)
    # All counters were nought at the first scrape, so their rates are stretched alike and ratios are exact.
    running.until(lambda: abs(running.value("augury:model_acceptance:ratio_rate5m") - rate) < 1e-6)
    (length,) = running.ask("augury:model_acceptance_length:mean5m")
    assert length["metric"] == {
        "__name__": "augury:model_acceptance_length:mean5m",
        "job": "augury",
        "model_name": "toy",
    }
    counted = server.metrics()
    drafts = counted["vllm:spec_decode_num_drafts_total"]
    assert float(length["value"][1]) == pytest.approx(
        1 + counted["vllm:spec_decode_num_accepted_tokens_total"] / drafts
    )
    reached = "augury:spec_decode_num_draft_tokens_per_pos_total"
    accepted = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    for sample in running.ask("augury:model_position_acceptance:ratio_rate5m"):
        position = f'{{"position": "{sample["metric"]["position"]}"}}'
        assert float(sample["value"][1]) == pytest.approx(counted[accepted + position] / counted[reached + position])
    assert 0 < running.value("augury:model_prefix_cache_hit:ratio_rate5m") < 1
    assert running.value("augury:model_waste:ratio_rate5m") == pytest.approx(1 - rate)


def test_every_recording_rule_has_data(ours: tuple[Prometheus, Path, float]) -> None:
    running, _, _ = ours
    names = [rule["name"] for rule in running.rules() if rule["type"] == "recording"]
    assert len(names) > 30
    missing = [name for name in names if not running.ask(name)]
    assert missing == []


@pytest.mark.parametrize("model", [".*", "toy"])
def test_every_panel_has_data_from_our_server(ours: tuple[Prometheus, Path, float], model: str) -> None:
    running, directory, _ = ours
    every = expressions(dashboard(directory))
    assert len(every) > 20
    filled = [expression.replace("$model_name", ".*") if model == ".*" else expression for expression in every]
    empty = [one for one in filled if not running.ask(substituted(one, model))]
    assert empty == []
    assert running.ask(substituted(every[0], "another")) == []


def test_the_panels_of_a_kit_for_vllm_have_data_too(ours: tuple[Prometheus, Path, float], tmp_path: Path) -> None:
    """Our server speaks vLLM's language: a dashboard written for vLLM shows it."""
    running, _, _ = ours
    directory = kit(tmp_path, selector='job="augury"', baseline_tok_s=10.0)
    assert [one for one in expressions(dashboard(directory)) if not running.ask(substituted(one, "toy"))] == []


def test_nothing_fires_on_a_healthy_server(ours: tuple[Prometheus, Path, float]) -> None:
    running, _, _ = ours
    assert running.ask('ALERTS{alertstate="firing"}') == []


# --- vLLM's -----------------------------------------------------------------------------------------------------


EXPECTED = {
    ("AuguryPositionWasteful", ODD), ("AuguryPositionWasteful", "wrong"), ("AuguryNoDrafts", "plain"),
    ("AuguryDraftsNeverAccepted", "wrong"), ("AuguryAcceptanceLow", "wrong"), ("AuguryBelowPlain", ODD),
    ("AuguryNoDrafts", "twins"),
}  # fmt: skip


def alerting(running: Prometheus) -> set[tuple[str, str | None]]:
    """Alerts that are pending or firing, with their models."""
    return {(one["metric"]["alertname"], one["metric"].get("model_name")) for one in running.ask("ALERTS")}


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Prometheus, Path]]:
    """A K too large behind an odd name, none, drafts that are all wrong; and twins, of which one lost speculation."""
    place = tmp_path_factory.mktemp("theirs")
    directory = kit(place / "kit", k=4, baseline_tok_s=1000.0)
    cliff, plain, wrong = StandIn(ODD, [0.9, 0.7, 0.3, 0.1]), StandIn("plain", None), StandIn("wrong", [0.0] * 4)
    with (
        stand_in(cliff) as first, stand_in(plain) as second, stand_in(wrong) as third,
        stand_in(StandIn("twins", [0.9, 0.8, 0.7, 0.6])) as well, stand_in(StandIn("twins", None)) as lost,
        prometheus(directory, place / "prometheus", "vllm", [first, second, third, well, lost]) as running,
    ):  # fmt: skip
        running.until(lambda: alerting(running) >= EXPECTED)
        twins = running.ask('ALERTS{alertname="AuguryNoDrafts",model_name="twins"}')
        assert [one["metric"]["instance"] for one in twins] == [lost]
        yield running, directory


def test_alerts_on_vllms_metrics(theirs: tuple[Prometheus, Path]) -> None:
    running, _ = theirs
    healthy(running)
    wrong = {("AuguryNoDrafts", ODD), ("AuguryAcceptanceLow", "plain"), ("AuguryTargetDown", None)}
    assert alerting(running) >= EXPECTED and not wrong & alerting(running)


def test_the_alert_names_the_k_to_use(theirs: tuple[Prometheus, Path]) -> None:
    running, _ = theirs
    (rule,) = (rule for rule in running.rules() if rule["name"] == "AuguryPositionWasteful")
    said = {alert["labels"]["model_name"]: alert["annotations"] for alert in rule["alerts"]}
    assert said[ODD]["summary"].startswith(f"{ODD}: ") and said[ODD]["summary"].endswith(
        "num_speculative_tokens 2 keeps those above"
    )
    assert "not even the first position" in said["wrong"]["summary"]
    assert re.search(r"augury diagnose http://127\.0\.0\.1:\d+ ", said[ODD]["first_step"])


def test_every_panel_has_data_from_vllms_metrics(theirs: tuple[Prometheus, Path]) -> None:
    running, directory = theirs
    assert [one for one in expressions(dashboard(directory)) if not running.ask(substituted(one, ODD))] == []


# --- the dashboard's form ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"kind": "ours", "method": "suffix", "k": 8}, {"baseline_tok_s": 30.0}])
def test_grafanas_own_types_take_the_dashboard_whole(options: dict[str, Any], tmp_path: Path) -> None:
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins
    from grafana_foundation_sdk.models.dashboard import Dashboard

    register_default_plugins()
    board = dashboard(kit(tmp_path, **options))
    again = json.loads(json.dumps(Dashboard.from_json(board), cls=JSONEncoder))
    assert contained(board, again) == []
    assert board["schemaVersion"] == Dashboard().schema_version


def contained(ours: Any, theirs: Any, path: str = "") -> list[str]:
    """What of ours is not in theirs, or is different there."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        missing = [f"{path}.{key}" for key in ours if key not in theirs]
        return missing + [
            one for key in ours if key in theirs for one in contained(ours[key], theirs[key], f"{path}.{key}")
        ]
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        return [
            one for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) for one in contained(a, b, f"{path}[{i}]")
        ]
    return [] if ours == theirs else [f"{path}: {ours!r} is {theirs!r}"]


UNITS = {"percentunit", "short", "s"}


def test_the_dashboard_holds_together(tmp_path: Path) -> None:
    board = dashboard(kit(tmp_path, datasource="Main"))
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        own = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not own & cells and place["x"] + place["w"] <= 24, panel["title"]
        cells |= own
        if panel["type"] == "row":
            continue
        assert panel["title"] and panel["description"].endswith(".")
        refs = [target["refId"] for target in panel.get("targets", [])]
        assert len(set(refs)) == len(refs)
        if refs:
            assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
            assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
            steps = [step["value"] for step in panel["fieldConfig"]["defaults"]["thresholds"]["steps"]]
            assert steps[0] is None and steps[1:] == sorted(steps[1:])
    variables = {one["name"]: one for one in board["templating"]["list"]}
    assert list(variables) == ["datasource", "model_name", "engine", "interval"]
    assert variables["datasource"]["current"]["value"] == "Main"
    assert {"timeseries", "status-history", "stat", "bargauge", "alertlist", "row"} == {
        panel["type"] for panel in panels
    }
