"""`augury bench --profile`: its arithmetic, what it refuses, its screen, and small runs of it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from gguf import GGMLQuantizationType as Kind
from rich.console import Console
from tiny_gguf import write_and_convert
from typer.testing import CliRunner

from augury.cli import app
from augury.config.errors import ConfigError
from augury.kernels.machine import DOT_PRODUCTS
from augury.tools.bench.clock import CORE, LAYER_STEPS, LAYERS, MATRICES, PARTS, PartClock, Steps
from augury.tools.bench.contenders import AUGURY, all_contenders
from augury.tools.bench.plan import BenchPlan
from augury.tools.bench.profile import Profile, contenders_of, profile_of, run_profile
from augury.tools.bench.profile_screen import show_profiles

NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1, "prompt_lookup_max": 3}


def plan(model: Path | str, prompts: Path | str, **changes: Any) -> BenchPlan:
    settings: dict[str, Any] = {
        "model": str(model),
        "peers": [],
        "batches": [1, 2],
        "prompts": [str(prompts)],
        "max_tokens": 6,
        "rounds": 1,
        "threads": 2,
        "dtype": "float32",
        "configs": [NGRAM],
    }
    return BenchPlan(**(settings | changes))


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    file = tmp_path / "questions.txt"
    file.write_text("hello hello hello\n123 123 123\n")
    return file


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A profile limits the threads of the process that it runs in."""
    monkeypatch.setattr(os, "environ", dict(os.environ))


def watched_steps(**milliseconds: float) -> Steps:
    watch = Steps(PartClock())
    watch.decode = [{part: ms / 1000 for part, ms in milliseconds.items()}]
    return watch


def test_shares_add_up() -> None:
    watch = Steps(PartClock())
    assert profile_of("chat", 1, AUGURY, watch).outside == 0.0
    watch.decode = [dict.fromkeys(PARTS, 0.001), dict.fromkeys(PARTS, 0.003)]
    watch.read_seconds, watch.read_tokens = 0.5, 100
    profile = profile_of("chat", 1, AUGURY, watch)
    assert profile.reading_ms == pytest.approx(5.0) and profile.layers_by_steps == {}
    assert profile.step_ms == pytest.approx(2 * len(PARTS)) == pytest.approx(sum(profile.parts_ms.values()))
    assert profile.outside == pytest.approx(1 - len(CORE) / len(PARTS))


def test_layers_are_divided_as_their_steps_are() -> None:
    """What the head and a drafter do of the same operations is not the layers'."""
    whole = watched_steps(**{LAYERS: 10.0, MATRICES: 1.0, "norms": 0.5})
    by_steps = watched_steps(**{MATRICES: 7.0, "attention": 1.5, "norms": 1.0})
    profile = profile_of("chat", 1, AUGURY, whole, by_steps)
    assert profile.layers_by_steps == pytest.approx(
        {MATRICES: 7.5, "attention": 1.875, "norms": 0.625, "rotary and cache write": 0.0, "activation": 0.0}
    )
    assert profile.step_ms == pytest.approx(11.5)


def names(peers: list[str], *arithmetics: str, packed: bool = True) -> list[str]:
    return [c.name for c in contenders_of(plan("m", "p", peers=peers), arithmetics, None, packed)]


def test_who_is_profiled() -> None:
    assert names([]) == names([], "exact") == ["augury", "augury-ngram"] == names([], packed=False)
    assert names([], "fast") == ["augury-fast", "augury-ngram-fast"]
    assert names([], "fast", "exact") == ["augury", "augury-ngram", "augury-fast", "augury-ngram-fast"]
    assert names(["augury-fast", "augury-unpacked"]) == ["augury-unpacked", "augury-fast"]
    for peers, arithmetic, packed, words in (
        (["llamacpp"], (), True, "--peers llamacpp: only Augury's own steps"),
        (["nobody"], (), True, "--peers nobody: unknown"),
        (["augury-fast"], (), False, "--peers augury-fast: the same as augury"),
        ([], ("fast",), False, "--cpu-arithmetic fast: these weights have no packed form"),
    ):
        with pytest.raises(ConfigError, match=words):
            names(peers, *arithmetic, packed=packed)


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        (["--cpu-arithmetic", "fast"], "belongs to --profile"),
        (["--profile", "--cpu-arithmetic", "quick"], "--cpu-arithmetic quick: use exact or fast"),
        (["--profile", "--cpu-arithmetic", "fast", "--peers", "augury"], "--cpu-arithmetic and --peers"),
        (["--profile", "--plot", "picture.png"], "--plot and --profile"),
    ],
)
def test_what_does_not_belong_is_refused(words: list[str], refusal: str) -> None:
    result = CliRunner().invoke(app, ["bench", *words])
    assert result.exit_code == 2 and refusal in " ".join(result.output.split())


def test_a_plain_checkpoint(toy_model: Path, questions: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profiles = run_profile(plan(toy_model, questions))
    assert {(p.contender, p.batch) for p in profiles} == {(c, b) for c in ("augury", "augury-ngram") for b in (1, 2)}
    assert all(0 < p.outside < 1 and sum(p.parts_ms.values()) == pytest.approx(p.step_ms) for p in profiles)
    printed = capsys.readouterr().out
    assert "matrices in float32; 0 of" in printed and "layers in one call  " not in printed


def test_both_arithmetics_of_a_packed_file(
    tmp_path: Path, questions: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything that the screen says is in the JSON, and the bar ends full."""
    _, directory = write_and_convert(tmp_path, "llama", Kind.Q4_1)
    told: list[tuple[int, list[str]]] = []

    @contextmanager
    def recorded(_: str, total: int) -> Iterator[Callable[[str], None]]:
        told.append((total, []))
        yield told[-1][1].append

    monkeypatch.setattr("augury.tools.shared.progress.progress", recorded)
    run_profile(plan(directory, questions, batches=[2]), as_json=True, arithmetics=("exact", "fast"))
    report = json.loads(capsys.readouterr().out)
    assert [p["arithmetic"] for p in report["profiles"]] == ["exact", "exact", "fast", "fast"]
    ((total, ticks),) = told
    assert len(ticks) == total and ticks[0] == "loading augury"
    forms = {w["contender"]: list(w["matrices"]) for w in report["weights"]}
    assert forms["augury-fast"] == ["4 bits (activations in 1 byte)"]
    slow = "4 bits (activations in 3 bytes)" if DOT_PRODUCTS else "4 bits (unpacked in the cache)"
    assert forms["augury-ngram"] == [slow]
    for profile, weights in zip(report["profiles"], report["weights"], strict=True):
        fused = weights["layers_in_one_call"]
        assert fused == (weights["layers"] if DOT_PRODUCTS or profile["arithmetic"] == "fast" else 0)
        steps = profile["layers_by_steps_ms"]
        assert set(steps) == (set(LAYER_STEPS) if fused else set())
        assert not fused or sum(steps.values()) == pytest.approx(profile["parts_ms"][LAYERS])
        assert not fused or steps[MATRICES] > 0 < steps["attention"]
    assert set(report) == {"machine", "chosen", "weights", "conditions", "profiles"}


def test_a_pipe_hears_of_the_machine_before_anything_is_loaded(
    toy_model: Path, questions: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_model(*_: Any, **__: Any) -> None:
        raise ConfigError("stop here")

    monkeypatch.setattr("augury.engine.llm.LLM", no_model)
    with pytest.raises(ConfigError, match="stop here"):
        run_profile(plan(toy_model, questions))
    printed = capsys.readouterr().out
    from augury.kernels.chosen import choices_in_words, machine_in_words

    for words in (*machine_in_words().values(), *choices_in_words().values()):
        assert words in printed  # on one line each, whatever its length
    assert "\x1b" not in printed


def test_a_table_fits_into_eighty_columns() -> None:
    watch = watched_steps(**{LAYERS: 1234.5, "rotary and cache write": 123.4})
    every = list(all_contenders([{"method": "draft_model", "num_speculative_tokens": 3}]).values())
    ours = [c for c in every if c.name in ("augury", "augury-draft_model")]
    profiles: list[Profile] = [profile_of("chat", batch, c, watch) for c in ours for batch in (1, 8, 16)]
    console = Console(width=80, record=True, force_terminal=True, color_system=None)
    with console.capture() as screen:
        show_profiles(console, profiles, [])
    lines = screen.get().splitlines()
    assert sum("draft_model, 16" in line for line in lines) == 1 and "…" not in screen.get()
    assert all(len(line.rstrip()) <= 80 for line in lines)
