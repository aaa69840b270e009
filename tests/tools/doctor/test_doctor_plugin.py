"""The doctor on commands that use Augury's plugin in vLLM."""

from __future__ import annotations

import json

import pytest

from augury.tools.doctor.examine import CheckedAgainst, examine

SPEC = {"num_speculative_tokens": 4, "prompt_lookup_min": 2, "rejection_sample_method": "coupled"}
REFUSED = "value-augury-only"
REFUSALS = {REFUSED, "key-unused", "config-refused"}


@pytest.mark.parametrize(
    ("drafter", "said"),
    [
        ({"method": "custom_class", "model": "augury.plugins.vllm.lookup.Ngram"}, set()),
        ({"method": "custom_class", "model": "their.Drafter"}, {"value-augury-only", "key-unused"}),
        ({"method": "ngram"}, {"value-augury-only"}),
    ],
)
def test_a_class_of_the_plugin_shows_that_it_is_installed(drafter: dict[str, str], said: set[str]) -> None:
    command = f"vllm serve m --speculative-config '{json.dumps({**drafter, **SPEC})}'"
    found = examine(command, "command", CheckedAgainst(release="0.32.0"))
    ids = {one.id for one in found.findings}
    assert ids & REFUSALS == said


def test_a_scheduler_of_the_plugin_shows_it_too() -> None:
    command = f"vllm serve m -sc '{json.dumps({'method': 'ngram', **SPEC})}' --scheduler-cls"
    for scheduler, said in (("augury.plugins.vllm.budget.SyncBudgetScheduler", set()), ("their.S", {REFUSED})):
        found = examine(f"{command} {scheduler}", "command", CheckedAgainst(release="0.32.0"))
        assert {one.id for one in found.findings} & REFUSALS == said


@pytest.mark.parametrize(
    ("install", "said"),
    [
        ("RUN pip install 'augury[vllm]'", set()),
        ("RUN pip install --no-cache-dir vllm augury==0.1.0", set()),
        ("RUN pip install augury-of-others", {REFUSED}),
        ("RUN pip install vllm && echo augury", {REFUSED}),
    ],
)
def test_a_file_that_installs_it_beside_vllm_may_use_its_rule(install: str, said: set[str]) -> None:
    words = json.dumps(["vllm", "serve", "m", "-sc", json.dumps({"method": "ngram", **SPEC})])
    found = examine(f"FROM vllm/vllm-openai:v0.32.0\n{install}\nENTRYPOINT {words}\n", "Dockerfile", CheckedAgainst())
    assert {one.id for one in found.findings} & REFUSALS == said and found.commands
