"""Small doors: code in a checkpoint, a key on its way to another host, an empty key, white space, the wrong extra."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from served import RUN, Served

from augury.model.errors import ModelError
from augury.model.tokenizer import Tokenizer
from augury.tools.shared.endpoint import Endpoint

# --- a checkpoint's own code -----------------------------------------------------------------------------------------


def test_the_code_of_a_checkpoint_never_runs(
    toy_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not even where somebody answers yes: nobody is asked."""
    model, mark = tmp_path / "model", tmp_path / "it-ran"
    shutil.copytree(toy_model, model)
    (model / "own.py").write_text(f"open({str(mark)!r}, 'w')\nclass Own:\n    pass\n")
    own = {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["own.Own", None]}}
    (model / "tokenizer_config.json").write_text(json.dumps(own))
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 9))
    with pytest.raises(ModelError, match="no usable tokenizer"):
        Tokenizer(model)
    assert not mark.exists() and "[y/N]" not in capsys.readouterr().out


# --- a key and a redirect --------------------------------------------------------------------------------------------


@contextmanager
def listening(to: str | None, seen: list[str | None]) -> Iterator[str]:
    """A server that lists a model, or sends everybody on to another; it notes the keys that it is shown."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

        def do_GET(self) -> None:
            seen.append(self.headers.get("Authorization"))
            body = b"" if to else b'{"data": [{"id": "toy"}]}'
            self.send_response(302 if to else 200)
            if to:
                self.send_header("Location", to + self.path)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    inner = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=inner.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{inner.server_port}"
    finally:
        inner.shutdown()
        inner.server_close()


@pytest.mark.parametrize("login", ["", "me:secret@"])
def test_a_key_does_not_follow_a_redirect(login: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    first: list[str | None] = []
    second: list[str | None] = []
    with listening(None, second) as other, listening(other, first) as asked:
        found = Endpoint("--url", asked.replace("://", f"://{login}"), key=None if login else "secret")
    assert found.model == "toy" and len(first) == 1 and first[0] and second == [None]


# --- an empty key ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [["--api-key", ""], ["--api-key", "good", "--api-key", " "], ["--api-key="]])
def test_an_empty_key_is_refused(words: list[str], tmp_path: Path) -> None:
    done = run("serve", str(tmp_path), *words)
    assert done.returncode == 2 and done.stderr.startswith("error: --api-key is empty"), done
    assert done.stderr.count("\n") == 1


def run(*words: str, before: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", before + RUN, *words], capture_output=True, text=True, timeout=60)


# --- white space -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", [" ", "\n", " \t "])
def test_white_space_can_be_barred(server: Served, word: str) -> None:
    """It was an error of the server's own; now those very tokens never come."""
    ids = server.http.post("/tokenize", json={"prompt": word, "add_special_tokens": False}).json()["tokens"]
    asked = {"prompt": "x", "max_tokens": 8, "temperature": 1.0, "ignore_eos": True, "return_token_ids": True}
    if len(ids) == 1:
        asked["logit_bias"] = {str(ids[0]): 100}
    free, barred = (server.http.post("/v1/completions", json={**asked, **more}) for more in ({}, {"bad_words": [word]}))
    assert free.status_code == 200 == barred.status_code, barred.text
    if len(ids) == 1:
        assert set(free.json()["choices"][0]["token_ids"]) == set(ids)
        assert ids[0] not in barred.json()["choices"][0]["token_ids"]


def test_a_word_that_has_no_token_is_refused(toy_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a tokenizer drops white space."""
    tokenizer = Tokenizer(toy_model)
    monkeypatch.setattr(Tokenizer, "encode", lambda self, text, special=True: [ord(c) for c in text if c != " "])
    assert tokenizer.bad_word_ids([" a"]) == [[97]]
    with pytest.raises(ValueError, match=r"^bad_words must be .* got ' '"):
        tokenizer.bad_word_ids(["a", " "])


# --- the extra that is missing ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "missing",
    [
        ("torch", "transformers", "safetensors", "tokenizers", "fastapi", "starlette", "uvicorn"),  # a base install
        ("fastapi", "starlette", "uvicorn", "h11"),  # augury[engine]
    ],
)
def test_serve_names_the_extra_that_brings_a_server(missing: tuple[str, ...], tmp_path: Path) -> None:
    done = run("serve", str(tmp_path), before=f"import sys; sys.modules.update(dict.fromkeys({missing!r}));")
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done
    assert "pip install 'augury[serve]'" in done.stderr
