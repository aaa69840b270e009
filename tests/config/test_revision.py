"""A drafter's revision: it reaches the hub for every method that has weights, and the notes where it does nothing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from augury import LLM
from augury.config.facts import read_facts
from augury.config.resolve import resolve
from augury.model import store
from augury.model.errors import ModelError
from augury.model.hub import HEAD_FILES, HEAD_PICKLES

METHODS = ("draft_model", "eagle", "eagle3", "mtp", "medusa", "mlp_speculator", "dflash", "dspark")
Asked = list[dict[str, Any]]


class Reached(Exception):
    """The hub was asked; a test needs no more."""


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("revision", ["v1.1", None])
def test_the_revision_reaches_the_hub(
    toy_model: Path, monkeypatch: pytest.MonkeyPatch, method: str, revision: str | None
) -> None:
    asked: Asked = []

    def snapshot_download(name: str, **options: Any) -> str:
        asked.append({"name": name, **options})
        raise Reached("enough")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    spec = {"method": method, "model": "nobody/drafter", "num_speculative_tokens": 2, "revision": revision}
    where = f" at revision {revision!r}" if revision else ""
    with pytest.raises(
        ModelError, match=f"nobody/drafter: not a local path, and it cannot be fetched from the hub{where} "
    ):
        LLM(str(toy_model), max_model_len=64, speculative_config=spec)
    assert [(a["name"], a["revision"]) for a in asked] == [("nobody/drafter", revision)]
    pickles = [p for p in asked[0]["allow_patterns"] if p.endswith((".bin", ".pt"))]
    assert pickles == ([] if method == "draft_model" else ["mask_embedding.pt"])


def fake_hub(monkeypatch: pytest.MonkeyPatch, snapshot: Path, files: tuple[str, ...]) -> Asked:
    """A repository with these files, of which a call fetches those that its patterns name."""
    asked: Asked = []
    snapshot.mkdir()

    def snapshot_download(name: str, **options: Any) -> str:
        asked.append(options)
        for file in files:
            if any(Path(file).match(pattern) for pattern in options["allow_patterns"]):
                (snapshot / file).touch()
        return str(snapshot)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return asked


@pytest.mark.parametrize(
    ("files", "fetched", "rounds"),
    [
        (
            ("model.safetensors", "pytorch_model.bin", "mask_embedding.pt"),
            ("mask_embedding.pt", "model.safetensors"),
            1,
        ),
        (("medusa_lm_head.pt", "pytorch_model.bin"), ("medusa_lm_head.pt",), 2),
        (("pytorch_model.bin", "mask_embedding.pt"), ("mask_embedding.pt", "pytorch_model.bin"), 3),
    ],
)
def test_pickles_are_fetched_only_where_there_is_nothing_better(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: tuple[str, ...], fetched: tuple[str, ...], rounds: int
) -> None:
    asked = fake_hub(monkeypatch, tmp_path / "head", ("config.json", *files))
    path = store.resolve("owner/head", revision="r2", pickles=True)
    assert sorted(file.name for file in path.iterdir()) == sorted(("config.json", *fetched))
    assert [tuple(a["allow_patterns"]) for a in asked] == [HEAD_FILES, *HEAD_PICKLES][:rounds]
    assert {a["revision"] for a in asked} == {"r2"}


def test_a_whole_model_of_the_hub_is_never_a_pickle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = fake_hub(monkeypatch, tmp_path / "model", ("config.json", "pytorch_model.bin"))
    with pytest.raises(ModelError, match="fetch the weights too"):
        store.resolve("owner/model")
    assert len(asked) == 1


def unused(**spec: Any) -> list[str]:
    config = resolve({"num_speculative_tokens": 2, "revision": "v1", **spec})
    assert config is not None
    return [note.text for note in config.notes if note.key == "revision" and note.kind == "unused"]


def test_where_it_does_nothing_a_note_says_so(toy_model: Path, tmp_path: Path) -> None:
    gguf = tmp_path / "x.gguf"
    gguf.touch()
    assert unused(method="draft_model", model="owner/name") == []
    for model in (toy_model, gguf):
        assert unused(method="draft_model", model=str(model)) == [
            "model is on this disk; only a checkpoint on the hub has revisions."
        ]
    (said,) = unused(method="mtp")
    assert "the target's own files" in said
    assert "does not read it" in unused(method="ngram")[0]


def test_facts_are_those_of_the_revision(toy_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    folder = tmp_path / "models--owner--head"
    for commit, width in (("aaa", 64), ("bbb", 128)):
        (folder / "snapshots" / commit).mkdir(parents=True)
        (folder / "snapshots" / commit / "config.json").write_text(json.dumps({"hidden_size": width}))
    (folder / "refs").mkdir()
    (folder / "refs" / "v1").write_text("aaa\n")
    widths = {}
    for revision in ("v1", "aaa", "bbb", "v2"):
        facts = read_facts("owner/head", revision)
        widths[revision] = facts and facts.hidden_size
    assert widths == {"v1": 64, "aaa": 64, "bbb": 128, "v2": None}
    spec = {"method": "eagle", "model": "owner/head", "num_speculative_tokens": 2}
    with pytest.raises(ValueError, match="trained on hidden size 128, the target has 64"):
        LLM(str(toy_model), speculative_config={**spec, "revision": "bbb"})
    shutil.rmtree(folder / "snapshots" / "bbb")
    config = resolve({**spec, "revision": "bbb"})
    assert config is not None and any(note.kind == "unchecked" and note.key == "model" for note in config.notes)
