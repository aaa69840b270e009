"""The doctor on commands that use Augury's plugin in vLLM."""

from __future__ import annotations

import json

import pytest

from augury.tools.doctor.examine import Asked, examine

SPEC = {"num_speculative_tokens": 4, "prompt_lookup_min": 2, "rejection_sample_method": "coupled"}


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
    found = examine(command, "command", Asked(release="0.32.0"))
    ids = {one.id for one in found.findings}
    assert ids & {"value-augury-only", "key-unused"} == said
