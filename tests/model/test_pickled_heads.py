"""Heads published as pickles: every kind drafts as from safetensors, and nothing but tensors is ever unpickled."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import medusa_cases
import mlp_cases
import pytest
import torch
from eagle_cases import DRAFT, EAGLE3, eagle3_module, eagle_module
from formulas_dflash import DFlashFormula, Shape, published_config, shaken
from formulas_medusa import Original
from generating import DEVICE
from safetensors.torch import save_file
from torch import Tensor

from augury import LLM, SamplingParams
from augury.model.weight_files import weight_files

Head = tuple[dict[str, Tensor], dict[str, Any]]  # tensors, config.json
MASK, RANK, LAYER = 259, 12, "model.mtp_layers.0."


def dflash() -> Head:
    return shaken(DFlashFormula(Shape())).state_dict(), published_config(Shape(), MASK, [0, 1])


def dspark() -> Head:
    tensors, config = dflash()
    torch.manual_seed(2)
    extra = {f"markov_head.{name}.weight": torch.randn(260, RANK) for name in ("markov_w1", "markov_w2")}
    kind = {"architectures": ["Qwen3DSparkModel"], "markov_rank": RANK, "markov_head_type": "vanilla"}
    return tensors | extra, {**config, **kind}


def mtp() -> Head:
    """MiMo's names, in a checkpoint of its own."""
    torch.manual_seed(4)
    block = {n.removeprefix("layers.0."): t for n, t in eagle_module().state_dict().items() if n.startswith("layers.")}
    norms = ("token_layernorm", "hidden_layernorm", "final_layernorm", "input_layernorm")
    tensors = {f"{LAYER}{name}.weight": torch.randn(64) * 0.1 + 1.0 for name in norms}
    tensors |= {f"{LAYER}input_proj.weight": torch.randn(64, 128) * 0.1}
    config = {**DRAFT, "num_hidden_layers": 2, "num_nextn_predict_layers": 1, "architectures": ["MiMoForCausalLM"]}
    return tensors | {f"{LAYER}{name}": tensor for name, tensor in block.items()}, config


HEADS: dict[str, Callable[[], Head]] = {
    "eagle": lambda: (eagle_module().state_dict(), DRAFT),
    "eagle3": lambda: (eagle3_module().state_dict(), {**EAGLE3, "eagle_aux_hidden_state_layer_ids": [0, 1, 2]}),
    "mtp": mtp,
    "medusa": lambda: (shaken(Original(3, 1, 64, 260)).state_dict(), medusa_cases.CONFIG),
    "mlp_speculator": lambda: (mlp_cases.mlp().state_dict(), mlp_cases.config()),
    "dflash": dflash,
    "dspark": dspark,
}


def write(directory: Path, head: Head, form: str) -> Path:
    """A head as safetensors, as one pickle, or as pickled shards with an index."""
    tensors = {name: tensor.detach().clone() for name, tensor in head[0].items()}
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(head[1]))
    if form == "safetensors":
        save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    elif form == "sharded":
        homes = {name: f"pytorch_model-{i % 2 + 1:05}-of-00002.bin" for i, name in enumerate(tensors)}
        for home in set(homes.values()):
            torch.save({name: t for name, t in tensors.items() if homes[name] == home}, directory / home)
        (directory / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": homes}))
    else:
        torch.save(tensors, directory / form)
    return directory


@pytest.fixture(scope="module")
def plain(toy_model: Path) -> LLM:
    return LLM(str(toy_model), device=DEVICE, max_model_len=128)


def loaded(plain: LLM, method: str, directory: Path, **spec: Any) -> LLM:
    wanted = {"method": method, "model": str(directory), "num_speculative_tokens": 3, **spec}
    return LLM(str(plain.model_path), device=DEVICE, max_model_len=128, weights_of=plain, speculative_config=wanted)


def drafts(llm: LLM) -> list[list[int]]:
    """What it drafts behind a prompt, step after step."""
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    request = llm.intake.requests("one", [64, 65, 66, 64, 65, 66, 64], params)[0]
    llm.engine.add(request)
    found = []
    for _ in range(5):
        llm.engine.step()
        found.append(llm.engine.state.draft.tokens[request.slot, :3].tolist())
    llm.engine.abort(request)
    return found


@pytest.mark.parametrize("method", HEADS)
def test_a_pickled_head_drafts_as_its_safetensors(plain: LLM, tmp_path: Path, method: str) -> None:
    head = HEADS[method]()
    wanted = drafts(loaded(plain, method, write(tmp_path / "safe", head, "safetensors")))
    assert len({tuple(draft) for draft in wanted}) > 1  # it says something
    for form in ("pytorch_model.bin", "head.pt", "sharded"):
        directory = write(tmp_path / form, head, form)
        torch.save({"lr": 0.1}, directory / "training_args.bin")  # what a trainer leaves is not looked at
        assert drafts(loaded(plain, method, directory)) == wanted, form


class Evil:
    """A pickle that would leave a mark."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return Path.touch, (self.mark,)


@pytest.mark.parametrize("method", HEADS)
@pytest.mark.parametrize("place", ["pytorch_model.bin", "head.pt", "sharded"])
def test_a_malicious_pickle_is_refused_and_never_run(plain: LLM, tmp_path: Path, method: str, place: str) -> None:
    head, mark = HEADS[method](), tmp_path / "ran"
    directory = write(tmp_path / "head", head, place)
    file = weight_files(directory)[-1]
    name = next(iter(torch.load(file, weights_only=True)))
    torch.save({name: Evil(mark)}, file, _use_new_zipfile_serialization=place != "head.pt")  # today's format, the old
    with pytest.raises(ValueError, match=f"{file.name} holds more than tensors and could run code"):
        loaded(plain, method, directory)
    assert not mark.exists()
    torch.load(file, weights_only=False)
    assert mark.exists()  # it would have run


@pytest.mark.parametrize("method", ["dflash", "dspark"])
@pytest.mark.parametrize("form", ["safetensors", "pytorch_model.bin"])
def test_a_mask_beside_the_weights(plain: LLM, tmp_path: Path, method: str, form: str) -> None:
    directory, mark = write(tmp_path / "head", HEADS[method](), form), tmp_path / "ran"
    before = drafts(loaded(plain, method, directory))
    torch.manual_seed(1)
    torch.save(torch.randn(64), directory / "mask_embedding.pt")
    assert drafts(loaded(plain, method, directory)) != before
    (directory / "mask_embedding.pt").write_bytes(pickle.dumps(Evil(mark), protocol=2))
    with pytest.raises(ValueError, match=r"mask_embedding.pt holds more than tensors"):
        loaded(plain, method, directory)
    assert not mark.exists()


@pytest.mark.parametrize("method", ["eagle", "medusa", "mtp"])
def test_safetensors_win_and_the_pickle_beside_them_is_not_opened(plain: LLM, tmp_path: Path, method: str) -> None:
    head, mark = HEADS[method](), tmp_path / "ran"
    directory = write(tmp_path / "head", head, "safetensors")
    wanted = drafts(loaded(plain, method, directory))
    (directory / "pytorch_model.bin").write_bytes(pickle.dumps(Evil(mark), protocol=2))
    (directory / "pytorch_model.bin.index.json").write_text("not an index")
    assert drafts(loaded(plain, method, directory)) == wanted and not mark.exists()


@pytest.mark.parametrize(
    ("shard", "says"),
    [
        ("pytorch_model-00003-of-00003.bin", "lacks shards that its index names: pytorch_model-00003-of-00003.bin"),
        ("../outside.bin", "names '../outside.bin', which is not a file of its directory"),
        ("{outside}", "which is not a file of its directory"),
        ("sub/../../outside.bin", "which is not a file of its directory"),
        ("", "names '', which is not a file"),
        (7, "names 7, which is not a file"),
        ([], "is not a shard index"),
    ],
)
def test_an_index_names_files_of_its_own_directory(plain: LLM, tmp_path: Path, shard: Any, says: str) -> None:
    head = HEADS["eagle"]()
    directory = write(tmp_path / "head", head, "sharded")
    outside = tmp_path / "outside.bin"
    torch.save({"fc.weight": torch.zeros(64, 128)}, outside)
    index = directory / "pytorch_model.bin.index.json"
    table = json.loads(index.read_text())
    table["weight_map"]["fc.weight"] = str(outside) if shard == "{outside}" else shard
    index.write_text(json.dumps(table))
    with pytest.raises(ValueError, match=says.replace("[", r"\[")):
        loaded(plain, "eagle", directory)


def test_an_index_that_is_none(plain: LLM, tmp_path: Path) -> None:
    directory = write(tmp_path / "head", HEADS["eagle"](), "sharded")
    for text in ("{", "[]", "{}", '{"weight_map": 3}'):
        (directory / "pytorch_model.bin.index.json").write_text(text)
        with pytest.raises(ValueError, match="is not a shard index"):
            loaded(plain, "eagle", directory)


def test_damaged_pickles_are_one_line(plain: LLM, tmp_path: Path) -> None:
    directory = write(tmp_path / "head", HEADS["eagle"](), "pytorch_model.bin")
    file = directory / "pytorch_model.bin"
    whole = file.read_bytes()
    cases = [(whole[:2000], "cut short"), (b"", "cut short"), (whole[:-30], "cut short")]
    sparse = {"fc.weight": torch.zeros(64, 128).to_sparse()}
    for saved, fault in (
        ([1, 2], "not a dictionary of tensors"),
        ({}, "no weights"),
        (sparse, "stored as a sparse tensor"),
    ):
        torch.save(saved, file)
        cases.append((file.read_bytes(), fault))
    for data, says in cases:
        file.write_bytes(data)
        with pytest.raises(ValueError, match=says) as caught:
            loaded(plain, "eagle", directory)
        assert "\n" not in str(caught.value)


def test_parameters_are_taken_as_tensors(plain: LLM, tmp_path: Path) -> None:
    """Trainers save what asks for gradients; a head writes into some of its weights as it loads."""
    head = HEADS["dflash"]()
    wanted = drafts(loaded(plain, "dflash", write(tmp_path / "a", head, "pytorch_model.bin")))
    directory = write(tmp_path / "b", head, "pytorch_model.bin")
    torch.save({n: torch.nn.Parameter(t.clone()) for n, t in head[0].items()}, directory / "pytorch_model.bin")
    assert drafts(loaded(plain, "dflash", directory)) == wanted


def test_whole_models_stay_safetensors_and_say_what_to_do(plain: LLM, toy_model: Path, tmp_path: Path) -> None:
    directory = tmp_path / "model"
    shutil.copytree(toy_model, directory)
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")
    for load in (lambda: loaded(plain, "draft_model", directory), lambda: LLM(str(directory))):
        with pytest.raises(ValueError, match=r"pytorch_model.bin is a pickle.*convert it.*save_pretrained"):
            load()
    with pytest.raises(ValueError, match=r"no \*.safetensors, \*.bin or \*.pt; fetch the weights too"):
        (directory / "pytorch_model.bin").unlink()
        loaded(plain, "eagle", directory)
