"""The server held to its own /openapi.json by schemathesis: no 5xx, no status or type it does not tell of."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from served import Served, served

SOUND, WRONG = 40, 25  # requests a route gets, by the schema and against it
ROUTES = ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/tokenize", "/detokenize")
CHECKS: list[Any] = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    response_headers_conformance,
]


@pytest.fixture(scope="module")
def server(toy_model: Path) -> Iterator[Served]:
    with served(toy_model, "--max-model-len", "64") as running:  # short, for bodies that set no limit
        yield running


def thin_out(case: Any, dice: random.Random) -> None:
    """Keep at most three fields that need not be there: with forty at random, one is always refused."""
    if isinstance(case.body, dict):
        optional = sorted(set(case.body) - {"prompt", "messages", "input", "tokens"})
        for name in dice.sample(optional, max(0, len(optional) - dice.randint(0, 3))):
            del case.body[name]


@pytest.mark.slow
def test_every_route_keeps_its_word(server: Served) -> None:
    told = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    operations = [found.ok() for found in told.get_all_operations()]
    assert {operation.path for operation in operations} >= {"/v1/completions", "/v1/chat/completions", "/health"}
    seen: Counter[tuple[str, int]] = Counter()
    for operation in operations:
        for mode, examples in ((GenerationMode.POSITIVE, SOUND), (GenerationMode.NEGATIVE, WRONG)):
            if mode is GenerationMode.NEGATIVE and operation.method in ("get", "delete"):
                continue  # nothing to get wrong

            @settings(
                max_examples=examples,
                deadline=None,
                derandomize=True,
                database=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            @given(case=operation.as_strategy(generation_mode=mode), dice=st.randoms(use_true_random=False))
            def keeps_its_word(case: Any, dice: random.Random) -> None:
                thin_out(case, dice)
                seen[case.path, case.call_and_validate(checks=CHECKS, timeout=60).status_code] += 1

            keeps_its_word()
    assert all(seen[route, 200] and seen[route, 400] for route in ROUTES), seen  # both kinds of answer were looked at


@pytest.mark.slow
def test_and_the_engine_lives(server: Served) -> None:
    server.until_idle()
    assert server.metrics()["vllm:kv_cache_usage_perc"] == 0
    assert "Traceback" not in server.log and "the engine process ended" not in server.log
    assert server.http.post("/v1/completions", json={"prompt": "still", "max_tokens": 2}).status_code == 200
