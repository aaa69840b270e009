"""The knowledge: entries are well formed, conditions can be answered both ways, the page is current."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from augury.cli import app
from augury.config.errors import ConfigError
from augury.config.versions import version
from augury.tools.knowledge.base import KINDS, Entry, knowledge, look_up, read_file
from augury.tools.knowledge.conditions import KnownFacts, check_condition, holds
from augury.tools.knowledge.fact_names import FACTS, PROBLEMS
from augury.tools.knowledge.screen import page, words

# Facts that make an entry hold, and facts next to them that do not, for what no command line shows.
NOW = {"counters_present": True, "drafts": 900, "drafts_now": 0, "decoded_now": 400, "scheduled_off": False}
MEASURED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "rate-under-half": (
        {"method": "eagle3", "acceptance_rate": 0.3, "first_position_rate": 0.5, "fault_rate": 0.32},
        {"method": "eagle3", "acceptance_rate": 0.4, "first_position_rate": 0.5, "fault_rate": 0.32},
    ),
    "drafts-stopped": (NOW | {"drafted_share_earlier": 0.9}, NOW | {"drafted_share_earlier": 0.9, "decoded_now": 40}),
    "drafts-none-now": (NOW, NOW | {"scheduled_off": True}),
    "drafts-seldom": (
        NOW | {"method": "eagle3", "drafts_now": 20, "drafted_share_now": 0.2},
        NOW | {"method": "eagle3", "drafts_now": 20, "drafted_share_now": 0.9},
    ),
    "first-position-low": (
        {"method": "eagle3", "first_position_rate": 0.49},
        {"method": "ngram", "first_position_rate": 0.49},
    ),
    "position-cliff": ({"cliff": 2, "first_position_rate": 0.8}, {"cliff": 2, "first_position_rate": 0.3}),
    "length-one": ({"drafts": 1000, "acceptance_length": 1.0}, {"drafts": 1000, "acceptance_length": 1.2}),
    "position-rate-low": (
        {"first_position_rate": 0.7, "acceptance_rate": 0.3, "k": 5, "useful_k": 2},
        {"first_position_rate": 0.7, "acceptance_rate": 0.3, "k": 5, "useful_k": 5},
    ),
    "counter-missing": ({"counters_missing": 1}, {"counters_missing": 0}),
    "counters-impossible": ({"counters_impossible": True}, {"counters_impossible": False}),
    "config-differs": ({"config_differs": True}, {"config_differs": False}),
    "acceptance-fell": ({"rate_change": -0.5}, {"acceptance_falling": False, "rate_change": 0.0}),
    "acceptance-fell-far-since": ({"past_change": -0.4}, {"past_change": -0.2}),
    "acceptance-fell-since": ({"past_change": -0.2}, {"past_change": 0.0}),
    "start-failed": ({"failed_in_log": True, "log_error": "x"}, {"failed_in_log": False}),
    "engine-died": ({"died_in_log": True, "log_error": "x"}, {"died_in_log": False}),
    "acceptance-falls-with-context": ({"context_spread": 0.3}, {"context_spread": 0.1}),
    "engine-dead": ({"engine_spread": 0.95}, {"engine_spread": 0.5}),
    "engine-apart": ({"engine_spread": 0.5}, {"engine_spread": 0.95}),
    "class-apart": ({"class_spread": 0.4}, {"class_spread": 0.1}),
    "below-plain": ({"speed_up": 0.9}, {"speed_up": 1.4}),
    "regime-short-drafts": (
        {"acceptance_length": 1.5, "length_floor": 2.0, "running": 4, "drafts": 9},
        {"acceptance_length": 1.5, "length_floor": 1.1, "running": 4, "drafts": 9},
    ),
    "regime-no-speed-up": ({"acceptance_length": 3.0, "speed_up": 1.0}, {"acceptance_length": 3.0, "speed_up": 2.0}),
    "regime-tail": ({"tail_worse": True}, {"tail_worse": False}),
    "regime-no-drafts": (
        {"counters_present": True, "drafts": 0, "generated": 50},
        {"counters_present": True, "drafts": 0, "generated": 0},
    ),
    "rate-below-band": ({"rate_at_most": 0.7, "band_rate_low": 0.75}, {"rate_at_most": 0.76, "band_rate_low": 0.75}),
    "length-below-band": (
        {"length_at_most": 2.9, "band_length_low": 3.0},
        {"length_at_most": 3.1, "band_length_low": 3.0},
    ),
    "no-counters": ({"counters_present": False}, {"counters_present": True}),
    "no-drafts": (
        {"counters_present": True, "drafts": 0, "generated": 50},
        {"counters_present": True, "drafts": 9, "generated": 50},
    ),
    "kv-nearly-full": ({"kv_usage": 0.96}, {"kv_usage": 0.5}),
    "queue-long": ({"waiting": 9, "running": 8}, {"waiting": 8, "running": 8}),
    "preempting": ({"preemptions": 1}, {"preemptions": 0}),
    "batch-large": ({"running": 32, "drafts": 9}, {"running": 31, "drafts": 9}),
    "prefix-never-hit": (
        {"prefix_queries": 20000, "prefix_hit_rate": 0.0},
        {"prefix_queries": 20000, "prefix_hit_rate": 0.1},
    ),
    "start-refused": ({"refused_in_log": True}, {"refused_in_log": False}),
    "lossy-rule": ({"lossy": True}, {"lossy": False}),
    "divisor-trap": ({"cliff_over_all": 2}, {"cliff_over_all": 0}),
    "signal-acceptance-falls-kv-climbs": (
        {"acceptance_falling": True, "kv_usage_rising": True},
        {"acceptance_falling": True, "kv_usage_rising": False},
    ),
    "signal-no-overlap": (
        {"acceptance_falling": False, "acceptance_length": 3.0, "length_floor": 2.0, "speed_up": 1.0},
        {"acceptance_falling": False, "acceptance_length": 3.0, "length_floor": 2.0, "speed_up": 1.5},
    ),
    "signal-queue": (
        {"acceptance_length": 3.0, "waiting": 40, "running": 20},
        {"acceptance_length": 3.0, "queue_growing": False, "waiting": 2, "running": 20},
    ),
    "signal-preemptions": (
        {"preemptions_rising": True, "acceptance_falling": True},
        {"preemptions_rising": False, "acceptance_falling": True},
    ),
    "signal-prefix-hits": ({"prefix_hits_fell": True}, {"prefix_hits_fell": False}),
    "signal-itl": ({"itl_unchanged": True}, {"itl_unchanged": False}),
    "dflash-backend-unset": (
        {"method": "dflash", "draft_backend": ""},
        {"method": "dflash", "draft_backend": "flash_attn"},
    ),
    "medusa-tp-claim": ({"method": "medusa", "tp": 4}, {"method": "medusa", "tp": 1}),
    "choose-none": ({"running": 64}, {"running": 4}),
}


def test_every_file_loads_and_every_kind_has_entries() -> None:
    entries = knowledge().values()
    assert {entry.kind for entry in entries} == set(KINDS)
    for entry in entries:
        assert entry.message and entry.why and entry.fix and entry.source, entry.id


def test_every_problem_has_an_entry() -> None:
    told = json.dumps([entry.condition for entry in knowledge().values()])
    assert not [name for name in PROBLEMS if f'"problem": "{name}"' not in told]


def test_gates_name_a_release_or_a_declaration() -> None:
    for entry in knowledge().values():
        if entry.kind == "gates" and "problem" not in entry.condition and entry.linted:
            assert entry.versions.since or entry.versions.until, entry.id


@pytest.mark.parametrize("name", MEASURED)
def test_what_no_command_shows_holds_and_does_not(name: str) -> None:
    yes, no = MEASURED[name]
    condition = knowledge()[name].condition
    if name == "dflash-backend-unset":
        assert holds(condition, KnownFacts(no)) is False  # a back end is named
        return
    assert holds(condition, KnownFacts(yes)) is True and holds(condition, KnownFacts(no)) is False


def test_every_measured_entry_has_such_facts() -> None:
    wanted = {e.id for e in knowledge().values() if e.kind in ("bands", "diagnoses")}
    wanted |= {e.id for e in knowledge().values() if e.kind in ("pitfalls", "gates") and not e.linted}
    assert wanted <= set(MEASURED)


def test_unknown_facts_are_neither_yes_nor_no() -> None:
    little = {"fact": "k", "more_than": 3}
    assert holds(little, KnownFacts({})) is None
    assert holds({"not": little}, KnownFacts({})) is None
    assert holds({"all": [little, {"method": "mtp"}]}, KnownFacts({"method": "eagle"})) is False
    assert holds({"any": [little, {"method": "mtp"}]}, KnownFacts({"method": "mtp"})) is True
    assert holds({"any": [little, {"method": "mtp"}]}, KnownFacts({"method": "eagle"})) is None


@pytest.mark.parametrize(
    ("bounds", "release", "answer"),
    [
        ("<0.11.1", "0.11.0", True),
        ("<0.11.1", "0.11.1", False),
        (">=0.9.1,<0.16", "0.12", True),
        ("==0.32", "0.32.0", True),
    ],
)
def test_release_bounds(bounds: str, release: str, answer: bool) -> None:
    assert holds({"version": bounds}, KnownFacts({"version": version(release)})) is answer


def test_facts_are_compared_with_facts() -> None:
    condition = {"fact": "k", "more_than": {"fact": "n_predict"}}
    assert holds(condition, KnownFacts({"k": 3, "n_predict": 1})) is True
    assert holds(condition, KnownFacts({"k": 1, "n_predict": 1})) is False
    assert holds({"fact": "k", "not_multiple_of": {"fact": "rows"}}, KnownFacts({"k": 5, "rows": 2})) is True


@pytest.mark.parametrize(
    ("condition", "says"),
    [
        ({"fact": "size", "is": 3}, "'size' is unknown"),
        ({"fact": "k", "more_than": {"fact": "size"}}, "'size' is unknown"),
        ({"fact": "k", "equals": 3}, "a comparison needs"),
        ({"method": "eagle4"}, "'eagle4' is unknown"),
        ({"key_present": "no_such_key"}, "'no_such_key' is unknown"),
        ({"problem": "trouble"}, "'trouble' is unknown"),
        ({"version": "about 0.9"}, "are not understood"),
        ({"all": []}, "all of nothing"),
        ({"eval": "1"}, "is no condition"),
        ([], "is a mapping"),
    ],
)
def test_conditions_that_nobody_could_answer_are_refused(condition: Any, says: str) -> None:
    assert says in (check_condition(condition) or "")


def test_a_bad_file_is_named_with_its_entry(tmp_path: Path) -> None:
    entry: dict[str, Any] = dict.fromkeys(("message", "why", "fix", "source"), "words")
    entry |= {"id": "x", "severity": "error", "condition": {"fact": "size", "is": 1}}
    file = tmp_path / "pitfalls.yaml"
    for change, says in (
        ({}, "'size' is unknown"),
        ({"condition": {"method": "mtp"}, "message": "{size}"}, "is no fact"),
        ({"condition": {"method": "mtp"}, "severity": "fatal"}, "severity"),
        ({"condition": {"method": "mtp"}, "versions": {"since": "soon"}}, "not a vLLM release"),
        ({"condition": {"method": "mtp"}, "note": "x"}, "note"),
    ):
        file.write_text(json.dumps([{**entry, **change}]))
        with pytest.raises(ConfigError, match=says) as raised:
            read_file(file, "pitfalls")
        assert "x" in str(raised.value)


def test_entries_are_looked_up_with_a_hint() -> None:
    assert look_up("key-gone").kind == "gates"
    with pytest.raises(ConfigError, match="k-over-heads"):
        look_up("k-over-head")


def test_the_page_is_current() -> None:
    written = (Path(__file__).parents[3] / "docs" / "knowledge.md").read_text()
    assert written == page(list(knowledge().values())) + "\n", (
        "run `augury knowledge list --markdown > docs/knowledge.md`"
    )


def test_commands_print_lists_and_entries() -> None:
    run = CliRunner().invoke
    listed = run(app, ["knowledge", "list", "--kind", "gates", "--json"])
    gates = json.loads(listed.stdout)["entries"]
    assert {e["kind"] for e in gates} == {"gates"} and any(e["id"] == "flag-gone" for e in gates)
    shown = run(app, ["knowledge", "show", "mtp-layer-repeated"])
    assert "k more than n_predict" in shown.stdout and shown.exit_code == 0
    assert run(app, ["knowledge", "show", "nonsense"]).exit_code == 2
    assert run(app, ["knowledge", "list", "--kind", "nonsense"]).exit_code == 2


def test_conditions_read_as_words() -> None:
    for entry in knowledge().values():
        assert words(entry.condition) and "{" not in words(entry.condition), entry.id


def test_every_fact_has_a_meaning() -> None:
    assert all(text.strip() for text in FACTS.values())
    assert isinstance(knowledge()["key-gone"], Entry)
