"""A framework of agents runs a task of two tools end to end: the same calls and text, drafted or not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_clients import Way
from agent_frameworks import with_smolagents
from served import Served, served

pytest.importorskip("smolagents", reason="smolagents is not installed: pip install 'augury[dev]'")

# Its own prompts are some thousand bytes, and the toy reads bytes.
SHORT: Any = {
    "system_prompt": "Use tools.",
    "planning": {"initial_plan": "", "update_plan_pre_messages": "", "update_plan_post_messages": ""},
    "managed_agent": {"task": "", "report": ""},
    "final_answer": {"pre_messages": "", "post_messages": ""},
}


@pytest.fixture(scope="module")
def server(toy_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    longer = tmp_path_factory.mktemp("longer") / "toy"
    shutil.copytree(toy_model, longer)
    config = json.loads((longer / "config.json").read_text())
    (longer / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 2048}))
    with served(longer, "--served-model-name", "toy") as running:
        yield running


def test_smolagents(server: Served) -> None:
    seen = []
    for speculative in ({"enabled": False}, {"num_speculative_tokens": 4}):
        for stream in (False, True):
            way = Way(server.url, "toy", speculative, stream)
            with_smolagents(way, "Oslo?", SHORT)
            seen.append(way.events)
    assert all(events == seen[0] for events in seen)
    assert [event[0] for event in seen[0]] == ["call", "call", "text"]
    assert {event[1] for event in seen[0][:2]} == {"weather", "clock"}
    assert server.metrics()["vllm:spec_decode_num_accepted_tokens_total"] > 0
