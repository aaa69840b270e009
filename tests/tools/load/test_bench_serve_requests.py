"""`augury bench serve`: what is sent, to whom and with which password, and what is said where nothing came back."""

from __future__ import annotations

import base64
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from benching import bench, fake, script_file
from hypothesis import given, settings
from hypothesis import strategies as st

from augury.tools.load.dataset import marked
from augury.tools.load.screen import HONEST

QUICK = {"chunks": 2}
CHAT = [{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}, {"role": "assistant", "content": "h"}]


@pytest.fixture
def server() -> Iterator[str]:
    with fake() as url:
        yield url


def asked(url: str) -> list[str]:
    """What the server was asked, in order, without the warming up."""
    with urllib.request.urlopen(f"{url}/asked") as reply:
        bodies = json.load(reply)
    texts = [body["messages"][0]["content"] if "messages" in body else body["prompt"] for body in bodies]
    return [text for text in texts if "{" in text]


# --- distinct requests -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_no_request_of_a_sweep_is_like_another(endpoint: str, server: str, tmp_path: Path) -> None:
    file = script_file(tmp_path, QUICK)
    words = ("--dataset", file, "--concurrency", "1,4", "--num-prompts", "8", "--endpoint", endpoint)
    done = bench(server, *words, "--json")
    first = asked(server)
    assert len(first) == len(set(first)) == 16 and all(text.endswith(json.dumps(QUICK)) for text in first)
    assert {"Request 1-1.", "Request 4-8."} <= {text.splitlines()[0] for text in first}
    assert json.loads(done.stdout)["conditions"]["prompts_reused"] is False
    shown = bench(server, *words)
    assert sorted(asked(server)) == sorted(first * 2)  # another run, for --compare, asks the same
    assert "each request has a first line of its own" in " ".join(shown.stdout.split())


def test_prompts_are_reused_where_that_is_wanted(server: str, tmp_path: Path) -> None:
    saved, words = tmp_path / "before.json", ("--dataset", script_file(tmp_path, QUICK), "--concurrency", "2")
    shown = bench(server, *words, "--reuse-prompts", "--save", str(saved))
    assert set(asked(server)) == {json.dumps(QUICK)} and "prompts are reused" in " ".join(shown.stdout.split())
    assert json.loads(saved.read_text())["conditions"]["prompts_reused"] is True
    compared = bench(server, *words, "--compare", str(saved)).stdout
    assert "prompts_reused False now, True then" in " ".join(compared.split())


def test_both_servers_get_the_same_and_one_that_is_both_does_not(server: str, tmp_path: Path) -> None:
    words = ("--dataset", script_file(tmp_path, QUICK), "--concurrency", "2", "--num-prompts", "12")
    with fake() as other:
        assert bench(server, "--baseline-url", other, *words).exit_code == 0
        assert sorted(asked(server)) == sorted(asked(other)) and len(set(asked(other))) == 12
        assert bench(other, "--baseline-url", f"{other}/v1/", *words).exit_code == 0
        assert len(set(asked(other))) == 24


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"messages": CHAT, "top_p": 1}, {"messages": [CHAT[0], CHAT[1] | {"content": "L\nhi"}, CHAT[2]], "top_p": 1}),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]},
            {"messages": [{"role": "user", "content": [{"type": "text", "text": t} for t in ("L", "hi")]}]},
        ),
        ({"prompt": "x", "n": 1}, {"prompt": "L\nx", "n": 1}),
        ({"prompt": ["x", "y"]}, {"prompt": ["L\nx", "L\ny"]}),
        ({"prompt": [1, 2]}, {"prompt": [1, 2]}),
    ],
)
def test_the_line_stands_before_the_first_question(body: dict[str, Any], expected: dict[str, Any]) -> None:
    before = json.dumps(body)
    assert marked(body, "L") == expected and json.dumps(body) == before


# --- passwords ---------------------------------------------------------------------------------------------------


def test_a_password_in_the_address_is_sent_and_never_shown(tmp_path: Path) -> None:
    pair = base64.b64encode(b"me:s3cret@x").decode()
    with fake(authorization=f"Basic {pair}") as url:
        mine = url.replace("//", "//me:s3cret%40x@")
        saved, words = tmp_path / "saved.json", ("--dataset", script_file(tmp_path, QUICK), "--concurrency", "1")
        done = bench(mine, *words, "--save", str(saved), "--api-key", "unused", "--baseline-url", mine)
        assert done.exit_code == 0, done.output
        for text in (done.output, saved.read_text()):
            assert "s3cret" not in text and "me:" not in text and pair not in text
        kept = json.loads(saved.read_text())
        assert kept["conditions"]["urls"]["new"] == url and kept["conditions"]["model"] == "fake"
        assert "spec_decode_num_drafts" in kept["results"][0]  # /metrics wants it, too
        wrong = bench(url.replace("//", "//me:no-g00d@"), *words)
        assert (
            wrong.exit_code == 2 and "refuses this user and password" in wrong.stderr and "no-g00d" not in wrong.output
        )
        refused = bench(url.replace("//", "//me:no-g00d@"), *words, "--model", "fake")
        assert refused.exit_code == 1 and "HTTP 401" in refused.output and "no-g00d" not in refused.output


@settings(deadline=None)
@given(st.text(st.characters(codec="ascii", exclude_categories=["Cc"], exclude_characters="/?#@% "), min_size=8))
def test_faulty_addresses_do_not_show_their_password(secret: str) -> None:
    done = bench(f"ftp://me:{secret}@host")
    assert done.exit_code == 2 and f":{secret}@" not in done.output


# --- nothing came back -------------------------------------------------------------------------------------------


def test_without_a_success_there_are_no_figures(server: str, tmp_path: Path) -> None:
    """Another's traffic moves the counters meanwhile; no figure may come of it."""
    words = ("--dataset", script_file(tmp_path, {"error_at": 1, "chunks": 4, "each": 3}), "--concurrency", "2")
    place = str(tmp_path / "p.png")
    done = bench(server, *words, "--plot", place)
    assert done.exit_code == 1 and "new, 2 streams: no request succeeded" in done.stdout
    assert "the engine died" in done.stdout
    assert not any(word in done.stdout for word in ("TTFT", "tok/s", "accepted", HONEST[:20]))
    assert not Path(place).exists() and "wrote" not in done.stderr
    (one,) = json.loads(bench(server, *words, "--json").stdout)["results"]
    assert one["median_ttft_ms"] is one["p99_tpot_ms"] is None and "spec_decode_acceptance_rate" not in one
    compared = bench(server, *words, "--baseline-url", server)
    assert "nothing to compare" in compared.stdout and "0.00x" not in compared.stdout


def test_one_token_has_no_time_per_token(server: str, tmp_path: Path) -> None:
    done = bench(server, "--dataset", script_file(tmp_path, {"chunks": 1}), "--concurrency", "1")
    assert done.exit_code == 0 and "TPOT" in done.stdout and "None" not in done.stdout


@pytest.mark.filterwarnings("error")
def test_letters_that_the_font_lacks_are_no_noise(server: str, tmp_path: Path) -> None:
    place = tmp_path / "p.png"
    words = ("--dataset", script_file(tmp_path, QUICK), "--concurrency", "1", "--model", "通义千问 🦙")
    done = bench(server, *words, "--plot", str(place))
    assert done.exit_code == 0 and "Glyph" not in done.stderr and place.read_bytes()[:4] == b"\x89PNG", done.output
