"""File names that try to steer the terminal."""

from __future__ import annotations

from pathlib import Path

import pytest
from bounded_run import SPEC, run
from hypothesis import given, settings
from hypothesis import strategies as st

from augury.tools.shared.safe_text import printable, safe_text, without_markup

STEERING = [chr(code) for code in (*range(32), *range(127, 160))]
EVIL = "evil\x1b]0;title\x07\x1b[31m\x9b2J\u009d"


def steers(text: str) -> list[str]:
    return sorted({sign for sign in text if sign in STEERING and sign != "\n"})


@pytest.fixture
def evil(tmp_path: Path) -> Path:
    folder = tmp_path / EVIL
    folder.mkdir()
    (folder / f"{EVIL}.sh").write_text(SPEC)
    (folder / "broken.yaml").write_text("command: [vllm serve\n")
    (folder / f"{EVIL}.jsonl").write_text('{"prompt": "abcabc", "completion": "abcabcabc"}\n{"prompt": 3}\n')
    (folder / f"good{EVIL}.jsonl").write_text('{"prompt": "abcabc", "completion": "abcabcabc"}\n' * 3)
    (folder / "config.json").write_text("[")
    (folder / "trace.log").write_text("x")
    return folder


@pytest.mark.parametrize(
    "words",
    [
        ("doctor", "{0}/{1}.sh"),
        ("doctor", "{0}"),
        ("doctor", "{0}/{1}.sh", "--fix", "--write"),
        ("doctor", "{0}/{1}.sh", "--json"),
        ("doctor", "{0}/none{1}.sh"),
        ("doctor", SPEC, "--target", "{0}"),
        ("doctor", "{0}/broken.yaml"),
        ("replay", "{0}/{1}.jsonl", "--tokenizer", "bytes"),
        ("replay", "{0}/good{1}.jsonl", "--tokenizer", "bytes"),
        ("replay", "{0}/good{1}.jsonl", "--tokenizer", "bytes", "--json"),
        ("replay", "{0}/none{1}"),
        ("replay", "{0}/trace.log"),
        ("suffix", "build", "{0}/good{1}.jsonl", "-o", "{0}/{1}.sx", "--tokenizer", "bytes"),
        ("suffix", "build", "{0}/trace.log", "-o", "{0}/{1}/x", "--tokenizer", "bytes"),
        ("suffix", "show", "{0}/{1}.jsonl"),
        ("advise", "--target", "{0}", "--gpu", "H200"),
        ("advise", "--target", "llama-3.1-8b", "--gpu", "H200", "--trace", "{0}/{1}.jsonl", "--tokenizer", "bytes"),
        ("models", "show", "{0}"),
        ("models", "verify", "{0}"),
        ("models", "remove", "{0}"),
        ("diagnose", "http://127.0.0.1:9", "--log", "{0}/none{1}"),
        ("monitor", "init", "{0}/trace.log/{1}"),
        ("config", "check", '{{"method": "eagle3", "model": "{0}"}}'),
        ("generate", "x", "--model", "{0}/{1}"),
        ("serve", "{0}/{1}"),
        ("certify", "--model", "{0}/{1}"),
        ("bench", "serve", "http://127.0.0.1:9/{1}"),
    ],
    ids=lambda words: " ".join(words)[:40].replace("\n", " "),
)
def test_names_steer_no_terminal(evil: Path, words: tuple[str, ...]) -> None:
    _, said = run(*(word.format(str(evil), EVIL) if "{0}" in word or "{1}" in word else word for word in words))
    assert not steers(said), said
    assert said.strip()


@given(st.text(), st.sampled_from(["", "\n", "\n\t"]))
@settings(max_examples=300, deadline=None)
def test_safe_text(text: str, keep: str) -> None:
    safe = safe_text(text, keep)
    assert safe == "".join(sign for sign in text if sign not in STEERING or sign in keep)
    assert not steers(without_markup(text)) and not steers(printable(text))
