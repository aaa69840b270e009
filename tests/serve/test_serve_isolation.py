"""What one key's requests leave behind is nothing to another's: no draft, no cached prompt, unless they share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from served import Served, served

from augury.serve.keys import Keys, salted
from augury.serve.openai import CompletionRequest
from augury.serve.welcome import _tenants

OWNER, THIEF = "key-of-the-owner", "key-of-the-thief"
SUFFIX = {"method": "suffix", "num_speculative_tokens": 8}
SECRET = {"prompt": "my diary: ", "max_tokens": 64, "temperature": 1, "seed": 5, "ignore_eos": True}
TAIL = 3  # tokens of the secret that the thief knows


@pytest.fixture(scope="module", params=["apart", "shared"])
def server(toy_model: Path, request: pytest.FixtureRequest) -> Iterator[Served]:
    flags = ["--api-key", OWNER, "--api-key", THIEF, *(["--share-between-keys"] if request.param == "shared" else [])]
    with served(toy_model, *flags, spec=SUFFIX) as running:
        running.http.headers["x-mode"] = request.param
        yield running


def ask(server: Served, key: str, **body: Any) -> dict[str, Any]:
    got = server.http.post("/v1/completions", json=body, headers={"Authorization": f"Bearer {key}"})
    assert got.status_code == 200, got.text
    return dict(got.json())


def shares(server: Served) -> bool:
    return server.http.headers["x-mode"] == "shared"


def drafts(server: Served, known: list[int], key: str, **more: Any) -> list[int]:
    """What a draft shows after the last known token, which the asker forces the model to say."""
    body = {"prompt": [7, *known[:-1]], "allowed_token_ids": [known[-1]], "max_tokens": 3, "ignore_eos": True}
    steps = ask(server, key, **body, speculative={"trace": True}, **more)["augury"]["steps"]
    forced = known[-1:]
    for step in steps:
        for node in step.get("draft", {}).get("ids", []):
            if node != forced[0]:
                return [int(node)]
    return []


def test_the_thief_gets_nothing(server: Served) -> None:
    """Token by token, from a known beginning, as the attack that succeeded did."""
    secret = ask(server, OWNER, **SECRET, return_token_ids=True)["choices"][0]["token_ids"]
    server.until_idle()
    stolen = list(secret[:TAIL])
    while len(stolen) < 12 and (more := drafts(server, stolen[-TAIL:], THIEF)):
        stolen += more
    if shares(server):
        assert len(stolen) > TAIL and stolen[TAIL] in secret  # the attack works where keys share, so it is one
    else:
        assert stolen == secret[:TAIL]


def test_a_salt_that_names_another_tenant_is_only_a_salt(server: Served) -> None:
    secret = ask(server, OWNER, **SECRET, return_token_ids=True)["choices"][0]["token_ids"]
    server.until_idle()
    owner = Keys([OWNER, THIEF]).tenant(f"Bearer {OWNER}".encode())
    for salt in (str(owner), f"{owner}:", "", ":"):
        found = drafts(server, secret[:TAIL], THIEF, cache_salt=salt)
        assert not found or (shares(server) and salt == "")


def test_cached_tokens_tell_nothing_of_other_keys(server: Served) -> None:
    def cached(key: str, **more: Any) -> int:
        usage = ask(server, key, prompt="did anybody ask about the merger of A and B? ", max_tokens=1, **more)["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    assert cached(OWNER) == 0 and cached(OWNER) > 0
    assert (cached(THIEF) > 0) == shares(server)
    assert cached(OWNER, cache_salt="a") == 0 and cached(OWNER, cache_salt="a") > 0
    assert (cached(THIEF, cache_salt="a") > 0) == shares(server)


def test_the_log_says_who_shares(server: Served) -> None:
    assert ("each key has caches of its own" in server.log) != shares(server)
    told = _tenants(Keys(["a", "b"]), {"suffix_decoding_cache_path": "corpus.suffix"})
    assert len(told) == 1 and "nothing is drafted from it" in told[0]  # no silent downgrade
    assert not _tenants(Keys(["a"]), {"suffix_decoding_cache_path": "corpus.suffix"})


def test_tenants_of_keys() -> None:
    def of(keys: list[str], key: str, share: bool = False) -> str | None:
        return Keys(keys, share).tenant(f"bearer {key}".encode())

    assert of(["a", "b"], "a") != of(["a", "b"], "b") and of(["a", "b"], "a") == of(["c", "a"], "a")  # over restarts
    assert of(["a", "b"], "c") is None and Keys(["a", "b"]).tenant(b"Basic a") is None
    assert of(["a", "b"], "a", share=True) == "" == of(["a"], "a") == of(["a", "a"], "a")
    assert "a" * 32 not in str(of(["a" * 32, "b"], "a" * 32))  # saved files do not hold keys
    assert not Keys([]) and salted("", None) is None and salted("", "s") == "s"
    assert salted("t", None) == salted("t", "") == "t:" and salted("t", "s") == "t:s"


def test_no_field_says_whose_a_request_is() -> None:
    body = {"prompt": "x", "_tenant": "t", "tenant": "t", "augury.tenant": "t"}
    request = CompletionRequest.model_validate(body)
    assert "extra_args" not in request.parameters()
    request.came_from("k")
    assert request.parameters()["extra_args"] == {"cache_salt": "k:"}
