"""The command line: quick to help, JSON where asked, one line for every mistake."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from augury import __version__
from augury.cli import app
from augury.config.errors import ConfigError

NGRAM = '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 2, "prompt_lookup_max": 3}'
HEAVY = ("torch", "transformers", "numba", "gguf", "safetensors", "matplotlib")
RUN = "from augury.cli import main; main()"


def augury(*words: str, stdin: str | None = None) -> Any:
    """Run a command in this process."""
    return CliRunner().invoke(app, list(words), input=stdin, prog_name="augury")


def shell(*words: str, stdin: str | None = None, **extra: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own, piped."""
    return subprocess.run(
        [sys.executable, "-c", RUN, *words], capture_output=True, text=True, input=stdin, env={**os.environ, **extra}
    )


def refused(result: Any, *words: str) -> None:
    """One line on standard error with these words in it, exit code 2, no traceback."""
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1, result.stderr
    for word in words:
        assert word in result.stderr


# --- help ----------------------------------------------------------------------------------------------------------


def test_help_is_quick() -> None:
    """At most 0.4 s of processor time, or, on a slow machine, not much more than typer itself takes to load.

    By turns, until both least times are known well enough: neighbours on a busy machine slow down one of them.
    """

    def seconds(*command: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([sys.executable, "-c", *command], capture_output=True, text=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert len(command) == 1 or all(name in done.stdout for name in ("generate", "demo", "models", "bench"))
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    ours, typer = float("inf"), float("inf")
    for _ in range(12):
        typer, ours = min(typer, seconds("import typer, typer.rich_utils")), min(ours, seconds(RUN, "--help"))
        if ours < max(0.4, 1.7 * typer):
            return
    raise AssertionError(f"{ours:.2f} s, and typer alone takes {typer:.2f}")


def test_help_loads_no_engine() -> None:
    code = "import sys, augury.cli; print([m for m in sys.argv[1:] if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code, *HEAVY], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("words", [["models"], ["models", "show", "default"]])
def test_listing_models_loads_no_engine(words: list[str], tmp_path: Path) -> None:
    watch = f"import atexit, sys; atexit.register(lambda: print([m for m in {HEAVY} if m in sys.modules])); {RUN}"
    env = {**os.environ, "AUGURY_CACHE": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", watch, *words], capture_output=True, text=True, env=env)
    assert done.stdout.strip().endswith("[]"), done


def test_a_missing_extra_is_named() -> None:
    block = f"import sys; sys.modules['torch'] = None; sys.modules['transformers'] = None; {RUN}"
    done = subprocess.run([sys.executable, "-c", block, "generate", "hello"], capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "pip install 'augury[engine]'" in done.stderr


@pytest.mark.parametrize("words", [["version"], ["--version"]])
def test_version(words: list[str]) -> None:
    assert augury(*words).stdout == f"augury {__version__}\n"


# --- generate ------------------------------------------------------------------------------------------------------


def test_generate_json(toy_model: Path) -> None:
    words = ("abcabcabc", "--raw", "--model", str(toy_model), "--max-tokens", "12", "-sc", NGRAM)
    result = augury("generate", *words, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert len(found["token_ids"]) == found["metrics"]["output_tokens"] <= 12
    assert {"acceptance_rate", "acceptance_length", "seconds", "tokens_per_second"} <= found["metrics"].keys()
    assert {"model", "dtype", "device", "threads", "temperature", "K"} <= found["conditions"].keys()
    assert found["conditions"]["K"] == 4


def test_generate_many_json(toy_model: Path, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    lines = [{"prompt": "one"}, {"messages": [{"role": "user", "content": "two"}]}]
    file.write_text("\n".join(json.dumps(line) for line in lines))
    words = ("--model", str(toy_model), "--prompts-file", str(file), "--max-tokens", "4", "--n", "2", "--json")
    found = json.loads(augury("generate", *words).stdout)
    assert [(o["prompt"], o["index"]) for o in found["outputs"]] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert all(len(o["token_ids"]) <= 4 for o in found["outputs"])


def test_speculation_changes_no_text(toy_model: Path) -> None:
    words = ("abcabcabc", "--raw", "--model", str(toy_model), "--max-tokens", "24", "--temperature", "0.8", "--seed=5")
    plain, fast = (augury("generate", *words, *more).stdout for more in ((), ("-sc", NGRAM)))
    assert plain == fast != ""


def test_piped_output_is_the_text_alone(toy_model: Path) -> None:
    words = ("generate", "--raw", "--model", str(toy_model), "--max-tokens", "8", "-sc", NGRAM)
    done = shell(*words, stdin="abcabc\n", FORCE_COLOR="", TERM="xterm-256color")
    assert done.returncode == 0 and done.stderr == "" and "\x1b" not in done.stdout
    said = json.loads(augury(*words, "abcabc", "--json").stdout)
    assert done.stdout == said["text"] + "\n"


def test_a_terminal_gets_accepted_drafts_in_colour(toy_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"FORCE_COLOR": "1", "TERM": "xterm", "NO_COLOR": ""}.items():
        monkeypatch.setenv(name, value)
    words = ("generate", "abcabc", "--raw", "--model", str(toy_model), "--max-tokens", "40", "-sc", NGRAM)
    shown = augury(*words).stdout
    assert "\x1b[32m" in shown and "tok/s" in shown
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[32m" not in augury(*words).stdout


def test_some_prompts_refused_others_answered(toy_model: Path, tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("short\n" + "long " * 200 + "\n")
    words = ("--raw", "--model", str(toy_model), "--prompts-file", str(file), "--max-tokens", "4")
    result = augury("generate", *words, "--json")
    first, second = json.loads(result.stdout)["outputs"]
    assert result.exit_code == 1 and first["error"] is None and first["token_ids"]
    assert "max_model_len" in second["error"] and not second["token_ids"]


# --- mistakes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--model", "/no/such/place"], ["/no/such/place", "default"]),
        (["-sc", "{nonsense"], ["--speculative-config", "not JSON"]),
        (["-sc", "[1]"], ["JSON object"]),
        (["-sc", '{"method": "ngram", "num_speculative_tokens": 2, "promt_lookup_max": 3}'], ["prompt_lookup_max"]),
        (["-sc", NGRAM, "--spec-tokens", "3"], ["--spec-tokens", "twice"]),
        (["--spec-method", "ngrams", "--spec-tokens", "3"], ["did you mean 'ngram'"]),
        (["--max-tokens", "-3"], ["max_tokens", "-3"]),
        (["--max-tokens", "many"], ["--max-tokens"]),
        (["--temperature", "-1"], ["temperature"]),
        (["--dtype", "int3"], ["dtype"]),
        (["--wrong-option"], ["--wrong-option", "augury generate --help"]),
        (["--prompts-file", "/no/such/file"], ["not both"]),
    ],
)
def test_mistakes_are_one_line(words: list[str], expected: list[str]) -> None:
    refused(augury("generate", "hello", *words), *expected)


def test_prompt_too_long_is_one_line(toy_model: Path) -> None:
    refused(augury("generate", "x" * 600, "--raw", "--model", str(toy_model)), "600 tokens", "max_model_len")


@pytest.mark.parametrize("words", [["nonsense"], ["--nonsense"], ["models", "nonsense"], ["models", "pull"]])
def test_wrong_commands_are_one_line(words: list[str]) -> None:
    refused(augury(*words), "--help")


@pytest.mark.parametrize("command", ["show", "remove", "verify"])
def test_unknown_models_are_one_line(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUGURY_CACHE", str(tmp_path))
    refused(augury("models", command, "nobody"), "nobody", "not in the cache")


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUGURY_DEBUG", "1")
    assert isinstance(augury("generate", "hello", "--max-tokens", "-3").exception, ConfigError)


def test_ctrl_c_is_exit_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr("augury.tools.run.generate.generate", interrupted)
    result = augury("generate", "hello")
    assert result.exit_code == 130 and result.stderr == "\n"


# --- models --------------------------------------------------------------------------------------------------------


def test_models_json(default_model: Path) -> None:
    listed = augury("models", "--json").stdout
    assert listed == augury("models", "list", "--json").stdout
    assert str(default_model) in [entry["path"] for entry in json.loads(listed)["models"]]
    pulled = json.loads(augury("models", "pull", "default", "--json").stdout)
    assert pulled == {"name": "default", "path": str(default_model), "ready": True}
    shown = json.loads(augury("models", "show", "default", "--json").stdout)
    assert shown["config"]["num_hidden_layers"] == 30
    checked = json.loads(augury("models", "verify", "default", "--json").stdout)
    assert str(default_model) in checked["verified"]


def test_models_remove_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUGURY_CACHE", str(tmp_path))
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "mine.gguf").write_bytes(b"12345")
    removed = json.loads(augury("models", "remove", "mine.gguf", "--json").stdout)
    assert removed == {"name": "mine.gguf", "freed_bytes": 5}
    assert json.loads(augury("models", "--json").stdout)["models"] == []


# --- demo ----------------------------------------------------------------------------------------------------------


def test_demo_json(default_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("augury.tools.run.demo.ROUNDS", 1)  # more are for the figures
    result = augury("demo", "--max-tokens", "8", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert len(found["prompts"]) == 3
    assert all(prompt["identical"] and prompt["text"] for prompt in found["prompts"])
    assert all({"plain", "ngram", "eagle3"} <= prompt["ways"].keys() for prompt in found["prompts"])
    assert {"model", "dtype", "threads", "temperature", "K", "torch"} <= found["conditions"].keys()


def test_demo_piped(default_model: Path) -> None:
    once = f"import augury.tools.run.demo as demo; demo.ROUNDS = 1; {RUN}"  # more are for the figures
    env = {**os.environ, "FORCE_COLOR": "", "TERM": "xterm-256color"}
    command = [sys.executable, "-c", once, "demo", "--max-tokens", "4"]
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    assert all(word in done.stdout for word in ("ngram", "eagle3", "speed-up", "acceptance", "torch", "K="))


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="a disk that is always full")
def test_a_full_disk_is_one_line() -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run([sys.executable, "-c", RUN, "config", "keys"], stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 2 and done.stderr.count(b"\n") == 1 and b"no space left" in done.stderr


def test_the_shell_completes_commands_and_the_options_of_those_that_load_late() -> None:
    run = "import sys; sys.argv = ['augury']; from augury.cli import main; main()"

    def completed(words: str, at: int) -> list[str]:
        env = {**os.environ, "_AUGURY_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(at)}
        done = subprocess.run([sys.executable, "-c", run], capture_output=True, text=True, env=env, check=False)
        return done.stdout.split()

    assert sorted(completed("augury mo", 1)) == ["models", "monitor"]
    assert completed("augury serve --kv-off", 2) == ["--kv-offloading-size", "--kv-offloading-backend"]
