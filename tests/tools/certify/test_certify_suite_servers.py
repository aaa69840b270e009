"""`augury certify --suite` of real servers: ours, and llama.cpp's where it is installed."""

from __future__ import annotations

import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from certifying import augury
from served import Served

from augury.model.store import pull_default

# Another Python may have it: it is compiled from source, and the project does not depend on it.
PEER = os.environ.get("LLAMA_CPP_PYTHON") or (
    sys.executable if find_spec("llama_cpp") and find_spec("starlette_context") else None
)
SHORT = ("--max-tokens", "16", "--batch", "2", "--long-words", "60")


def test_our_server(server: Served) -> None:
    found = augury("--suite", "--url", server.url, "--json", *SHORT)
    told = json.loads(found.stdout)
    verdicts = {cell["suite"]: cell["verdict"] for cell in told["cells"]}
    reasons = [cell for cell in told["cells"] if cell["verdict"] == "red"]
    assert found.exit_code == 0 and set(verdicts.values()) == {"green", "grey"}, reasons
    for suite in ("stream", "n", "logprobs", "long", "concurrency"):
        assert verdicts[suite] == "green", told
    assert verdicts["greedy"] == "grey"  # there is nobody to compare with
    assert verdicts["replay"] == "grey"  # it is longer than what a toy can read
    first = told["cells"][0]
    assert first["server"] == "Augury" and first["release"] != "unknown"


@pytest.mark.slow
@pytest.mark.skipif(
    PEER is None, reason="llama-cpp-python[server] is not installed; LLAMA_CPP_PYTHON may name a Python"
)
def test_the_server_of_llama_cpp_with_its_own_drafts(tmp_path: Path) -> None:
    gguf = pull_default(quiet=True)
    run = f"{PEER} -m llama_cpp.server --model {gguf} --model_alias peer --n_ctx 2048 --n_threads 1"
    run += " --logits_all true --port {port}"
    drafting = f"{run} --draft_model prompt-lookup-decoding --draft_model_num_pred_tokens 4"
    file = tmp_path / "servers.yml"
    file.write_text(json.dumps([{"speculative": drafting, "plain": run, "method": "prompt-lookup"}]))
    found = augury("--suite", "--servers", str(file), "--only", "greedy,replay,json,n", "--json", *SHORT)
    assert found.stdout, found.output
    cells = {cell["suite"]: cell for cell in json.loads(found.stdout)["cells"]}
    assert cells["greedy"]["server"] == "llama-cpp-python" and cells["greedy"]["release"] != "unknown"
    assert cells["greedy"]["verdict"] == cells["replay"]["verdict"] == "green", cells
    assert cells["greedy"]["figures"]["tokens"] > 20 and cells["n"]["verdict"] == "grey"
    assert cells["json"]["evidence"].get("plain_too") in (None, True)  # what drafts did not break
