"""Drafters in the speculators format: our own loader drafts the same, and the library reads the configuration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from augury import LLM
from augury.config.errors import ConfigError
from augury.config.sampling import SamplingParams
from augury.model.checkpoint import read_config
from augury.train.batches import Teacher
from augury.train.export import name_target
from augury.train.speculators import as_speculator
from augury.train.trainee import Goal, kinds, layers_of, trainee_of

pytestmark = pytest.mark.usefixtures("one_thread_throughout")
PROMPTS = [{"prompt_token_ids": [65 + i, 97, 70 + i, 99]} for i in range(4)]
TYPES = {"eagle3": "eagle3", "p-eagle": "peagle", "dflash": "dflash"}


def exported(toy_model: Path, kind: str, vocabulary: int, out: Path) -> Path:
    """A fresh drafter; the target's layers are its beginning, so it guesses something now and then."""
    config = read_config(toy_model)
    teacher = Teacher(toy_model, layers_of(kind, config), torch.device("cpu"), torch.float32)
    torch.manual_seed(3)
    words = torch.arange(1, config.vocab_size, 2)[:vocabulary] if vocabulary else torch.arange(config.vocab_size)
    trainee_of(kind)(Goal(kind, 3, vocabulary), config, teacher, words).export(toy_model, out)
    return out


def drafts(llm: LLM) -> tuple[list[Any], list[int]]:
    """The text, and how many tokens were accepted at each place: random heads differ in it if their drafts do."""
    params = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    texts = [output.outputs[0].token_ids for output in llm.generate(PROMPTS, params, use_tqdm=False)]
    return texts, list(llm.engine.stats.spec.accepted_per_pos)


@pytest.mark.parametrize(("kind", "vocabulary"), [("eagle3", 0), ("p-eagle", 100), ("dflash", 0)])
def test_a_speculator_drafts_what_its_drafter_does(
    kind: str, vocabulary: int, toy_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine with the speculator in the target's place makes the same scores for every guess."""
    drafter = exported(toy_model, kind, vocabulary, tmp_path / "published")
    assert as_speculator(drafter, str(toy_model), 3, tmp_path / "speculator") == TYPES[kind]
    card_settings = kinds()[kind].settings
    spec = {"model": str(drafter), "num_speculative_tokens": 3, **card_settings}
    named, alone = (
        LLM(str(toy_model), device="cpu", max_model_len=64, speculative_config=spec),
        LLM(str(tmp_path / "speculator"), device="cpu", max_model_len=64),
    )
    config = alone.config.speculative_config
    assert config is not None and config.num_speculative_tokens == 3
    assert config.method == named.config.speculative_config.method  # type: ignore[union-attr]
    seen: list[list[Any]] = [[], []]
    for llm, kept in zip((named, alone), seen, strict=True):
        propose: Any = llm.engine.drafter.propose  # type: ignore[union-attr]

        def watched(inputs: Any, propose: Any = propose, kept: list[Any] = kept) -> Any:
            draft = propose(inputs)
            kept.append(draft.tokens.tolist())
            return draft

        monkeypatch.setattr(llm.engine.drafter, "propose", watched)
    assert drafts(named) == drafts(alone) and seen[0] == seen[1] and len(seen[0]) > 3


def test_names_are_the_librarys(toy_model: Path, tmp_path: Path) -> None:
    as_speculator(exported(toy_model, "p-eagle", 100, tmp_path / "a"), str(toy_model), 5, tmp_path / "b")
    told = json.loads((tmp_path / "b/config.json").read_text())
    assert told["speculators_model_type"] == told["speculators_config"]["algorithm"] == "peagle"
    assert told["speculators_config"]["proposal_methods"][0]["speculative_tokens"] == 5
    verifier = {"name_or_path": str(toy_model), "architectures": ["LlamaForCausalLM"]}
    assert told["speculators_config"]["verifier"] == verifier
    assert told["transformer_layer_config"]["vocab_size"] == 260 and told["draft_vocab_size"] == 100
    names = load_file(tmp_path / "b/model.safetensors").keys()
    assert {"fc.weight", "fc_norm.0.weight", "layers.0.hidden_norm.weight", "mask_hidden", "d2t", "t2d"} <= names
    assert not any(name.startswith("midlayer") for name in names)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("medusa", "of medusa drafters: vLLM reads them as they are"),
        ("eagle", "of eagle drafters: vLLM reads them as they are"),
        ("mlp_speculator", "of mlp_speculator drafters: vLLM reads them as they are, but for those with words"),
        ("draft_model", "of draft_model drafters: they are models"),
        ("mtp", "of mtp drafters: each is its target plus one layer"),
    ],
)
def test_kinds_that_the_format_lacks_are_refused(kind: str, said: str, toy_model: Path, tmp_path: Path) -> None:
    drafter = exported(toy_model, kind, 0, tmp_path / "a")
    name_target(drafter, toy_model)
    with pytest.raises(ConfigError, match=f"cannot be exported; EAGLE-3, P-EAGLE and DFlash.*{said}"):
        as_speculator(drafter, str(toy_model), 3, tmp_path / "b")


def test_relatives_of_dflash_are_not_written_as_dflash(toy_model: Path, tmp_path: Path) -> None:
    drafter = exported(toy_model, "dflash", 0, tmp_path / "a")
    file = drafter / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"architectures": ["DFlash2DraftModel"]}))
    with pytest.raises(ConfigError, match="cannot be exported"):
        as_speculator(drafter, str(toy_model), 3, tmp_path / "b")


def test_what_is_no_drafter_is_not_exported(toy_model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a readable drafter"):
        as_speculator(tmp_path / "nowhere", str(toy_model), 3, tmp_path / "b")
    (tmp_path / "config.json").write_text('{"speculators_model_type": "eagle3", "transformer_layer_config": {}}')
    save_file({"d2t": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match="in this format already"):
        as_speculator(tmp_path, str(toy_model), 3, tmp_path / "b")


def test_weights_that_are_no_numbers_are_not_exported(toy_model: Path, tmp_path: Path) -> None:
    file = exported(toy_model, "eagle3", 100, tmp_path / "a") / "model.safetensors"
    tensors = load_file(file)
    tensors["fc.weight"][0, 0] = float("nan")
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(ConfigError, match=r"fc\.weight has NaN or infinite values"):
        as_speculator(file.parent, str(toy_model), 3, tmp_path / "b")
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("kind", TYPES)
def test_the_library_reads_it(kind: str, toy_model: Path, tmp_path: Path) -> None:
    """speculators itself, where it is installed: its class for the type, with our values in it."""
    library: Any = pytest.importorskip("speculators")
    as_speculator(exported(toy_model, kind, 0, tmp_path / "a"), str(toy_model), 3, tmp_path / "b")
    config = library.SpeculatorModelConfig.from_pretrained(str(tmp_path / "b"))
    assert config.speculators_model_type == TYPES[kind]
    assert config.speculators_config.verifier.name_or_path == str(toy_model)
    model = library.SpeculatorModel.from_pretrained(str(tmp_path / "b"))
    mine, theirs = load_file(tmp_path / "b/model.safetensors"), model.state_dict()
    assert mine and all(torch.equal(theirs[name].float(), tensor.float()) for name, tensor in mine.items())


def test_what_others_read_otherwise_is_written_out(toy_model: Path, tmp_path: Path) -> None:
    """vLLM takes norm_before_residual for true where an EAGLE-3 speculator leaves it out: 1.27 tokens a step, not 2."""
    as_speculator(exported(toy_model, "eagle3", 0, tmp_path / "a"), str(toy_model), 3, tmp_path / "b")
    assert json.loads((tmp_path / "b" / "config.json").read_text())["norm_before_residual"] is False
