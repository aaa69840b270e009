"""speculative_config: a table of cases, and any JSON at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from config_cases import ALL, NGRAM, Case
from hypothesis import given, settings
from hypothesis import strategies as st

from augury.config.errors import ConfigError
from augury.config.facts import TargetInfo, read_facts
from augury.config.read import KEYS
from augury.config.resolve import resolve
from augury.config.rules import rates_for_length
from augury.config.speculative import SpeculativeConfig
from augury.methods.registry import ALIASES, METHODS

LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "max_position_embeddings": 2048,
}
OMNI_DRAFT = {
    "architectures": ["Qwen3OmniDSparkModel"],
    "block_size": 6,
    "hidden_size": 64,
    "num_attention_heads": 8,
    "head_dim": 8,
    "target_layer_ids": [1, 2],
    "use_aux_hidden_state": True,
    "markov_rank": 4,
    "markov_head_type": "vanilla",
    "sample_from_anchor": True,
    "vocab_size": 100,
    "mask_token_id": 99,
}
MODELS: dict[str, dict[str, Any]] = {
    "llama": LLAMA,
    "wide": {**LLAMA, "hidden_size": 128},
    "short": {**LLAMA, "max_position_embeddings": 512},
    "padded": {**LLAMA, "vocab_size": 128},
    "other-vocab": {**LLAMA, "vocab_size": 90},
    "eagle-named-llama": LLAMA,
    "renamed": {**LLAMA, "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 50, "num_hidden_layers": 1},
    "deep-features": {**LLAMA, "draft_vocab_size": 50, "eagle_aux_hidden_state_layer_ids": [1, 9]},
    "medusa": {"model_type": "medusa", "num_heads": 3, "hidden_size": 64, "vocab_size": 100},
    "original-medusa": {"medusa_num_heads": 2, "medusa_num_layers": 1, "base_model_name_or_path": "x"},
    "mlp": {"model_type": "mlp_speculator", "n_predict": 3, "emb_dim": 64, "vocab_size": 100},
    "dflash": {**LLAMA, "architectures": ["DFlashDraftModel"], "block_size": 16},
    "dspark": {**LLAMA, "model_type": "qwen3", "architectures": ["Qwen3DSparkModel"], "block_size": 6},
    "dspark-v4": {**LLAMA, "architectures": ["DSparkDraftModel"], "dspark_block_size": 5},
    "dspark-omni": OMNI_DRAFT,
    "omni": {**LLAMA, "model_type": "qwen3_omni_moe", "head_dim": 8},
    "qwen3-next": {**LLAMA, "model_type": "qwen3_next", "num_nextn_predict_layers": 1},
    "deepseek": {**LLAMA, "model_type": "deepseek_v3", "num_nextn_predict_layers": 1},
    "deepseek-v41": {**LLAMA, "model_type": "deepseek_v41", "num_nextn_predict_layers": 1},
    "mtp2": {**LLAMA, "model_type": "deepseek_v3", "num_nextn_predict_layers": 2},
    "inkling": {**LLAMA, "model_type": "inkling_model"},
    "dots": {**LLAMA, "model_type": "dots3_note", "mtp_layer_types": ["full", "full"]},
    "trained-mtp": {
        **LLAMA,
        "architectures": ["MiMoForCausalLM"],
        "num_nextn_predict_layers": 1,
        "augury_target": {"name": "llama"},
    },
    "odd": {"architectures": 5, "model_type": 3, "dflash_config": [1], "n_predict": True, "text_config": "x"},
    "p-eagle": {"speculators_model_type": "peagle", "transformer_layer_config": LLAMA, "speculators_config": {}},
    "speculators": {
        "speculators_model_type": "eagle3",
        "transformer_layer_config": LLAMA,
        "draft_vocab_size": 50,
        "speculators_config": {
            "algorithm": "eagle3",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 5}],
            "verifier": {"name_or_path": "meta/llama", "architectures": ["LlamaForCausalLM"]},
        },
    },
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directories with a config.json each; two of them share a tokenizer."""
    root = tmp_path_factory.mktemp("m")
    for i, (name, config) in enumerate(MODELS.items()):
        # vLLM looks for words anywhere in the path, so only the one that is meant to has such a word.
        directory = root / (name if name == "eagle-named-llama" else f"c{i}")
        directory.mkdir()
        (directory / "config.json").write_text(json.dumps(config))
        if name in ("llama", "padded"):
            (directory / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"a": 0, "b": 1}}}))
    return root


def place(root: Path, name: str) -> str:
    """The directory behind @name."""
    name = name.removeprefix("@")
    return str(root / (name if name == "eagle-named-llama" else f"c{list(MODELS).index(name)}"))


def resolved(case: Case, root: Path, wanted: Any) -> SpeculativeConfig:
    if isinstance(wanted, dict) and str(wanted.get("model")).startswith("@"):
        wanted = {**wanted, "model": place(root, wanted["model"])}
    directory = place(root, case.target) if case.target else None
    target = TargetInfo(directory, read_facts(directory) if directory else None, case.tp)
    config = resolve(wanted, target, case.as_of)
    assert config is not None
    return config


CASES = [pytest.param(case, id=f"{name}-{i}") for name, cases in ALL.items() for i, case in enumerate(cases)]


def test_the_table_is_as_long_as_promised() -> None:
    assert len(CASES) >= 150


@pytest.mark.parametrize("case", CASES)
def test_case(case: Case, models: Path) -> None:
    if isinstance(case.expect, str):
        with pytest.raises(ConfigError) as caught:
            resolved(case, models, case.given)
        message = str(caught.value)
        assert case.expect in message
        assert "\n" not in message and message.endswith((".", "?")), message
        assert isinstance(caught.value, ValueError)  # what scripts written for vLLM catch
        return
    config = resolved(case, models, case.given)
    for name, value in case.expect.items():
        found = getattr(config, name)
        assert found == (pytest.approx(value) if name == "synthetic_acceptance_rates" and value else value), name
    for kind, words in case.notes:
        assert any(note.kind == kind and words in note.text for note in config.notes), config.notes
    again = resolved(case._replace(as_of=None), models, json.loads(json.dumps(config.to_dict())))
    assert again == config


def test_every_key_is_declared_in_full() -> None:
    for name, key in KEYS.items():
        assert key.help.endswith(".") or key.help.endswith(")."), name
        assert key.accepts and key.since, name
        assert key.until is None or key.instead, name


def test_every_key_a_card_names_exists() -> None:
    for card in METHODS.values():
        assert set(card.keys) <= set(KEYS), card.name
    assert len(ALIASES) == 26


@pytest.mark.parametrize(
    ("method", "parallel", "slots", "ahead"),
    [
        ("eagle3", False, 0, 8),
        ("eagle3", True, 7, 8),
        ("dflash", False, 8, 9),
        ("dspark", False, 7, 8),
        ("mtp", False, 0, 8),
        ("ngram", False, 0, 0),
        ("draft_model", False, 1, 8),
        ("draft_model", True, 8, 8),
        ("suffix", False, 0, 0),
        ("medusa", False, 0, 0),
    ],
)
def test_slots_and_lookahead(method: str, parallel: bool, slots: int, ahead: int) -> None:
    given = {"method": method, "num_speculative_tokens": 8, "parallel_drafting": parallel}
    config = resolve(given | ({"model": "a/b"} if METHODS[method].weights == "draft" else {}))
    assert config is not None
    assert (config.extra_slots, config.kv_lookahead, config.rows_per_step) == (slots, ahead, 9)
    assert config.continues_hidden_states == (method in ("eagle", "eagle3", "mtp", "dflash", "dspark"))
    assert config.reads_auxiliary_layers == (method in ("eagle3", "dflash", "dspark", "extract_hidden_states"))
    assert config.prefill_lookahead == int(config.continues_hidden_states)


def test_a_dspark_draft_that_fills_in_looks_one_further(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps({"architectures": ["Qwen3DSparkModel"], "sample_from_anchor": False})
    )
    config = resolve({"method": "dspark", "model": str(tmp_path), "num_speculative_tokens": 8})
    assert config is not None and config.kv_lookahead == 9


def test_several_mtp_modules_look_further_ahead_in_the_prompt(models: Path) -> None:
    two = TargetInfo("t", read_facts(place(models, "mtp2")))
    config = resolve({"method": "mtp", "num_speculative_tokens": 2}, two)
    assert config is not None and config.prefill_lookahead == 2


def test_an_instance_is_checked_like_a_dictionary() -> None:
    again = resolve(SpeculativeConfig(method="suffix"))
    assert again is not None and again.num_speculative_tokens == 24
    with pytest.raises(ConfigError, match="num_speculative_tokens"):
        resolve(SpeculativeConfig(method="ngram"), as_of="0.32.0")
    adapts = resolve(SpeculativeConfig(method="ngram"))
    assert adapts is not None and adapts.adaptive and adapts.num_speculative_tokens == 16
    assert "zzz" in repr(SpeculativeConfig(method="zzz"))
    assert len({again, resolve({"method": "suffix"})}) == 1


def test_schedule_table() -> None:
    config = resolve({**NGRAM, "num_speculative_tokens_per_batch_size": [[1, 16, 9], [32, 128, 2], [256, 2048, 0]]})
    assert config is not None and config.schedule is not None
    table = config.schedule.table(300)
    assert len(table) == 301
    assert [table[n] for n in (1, 16, 17, 31, 32, 128, 129, 255, 256, 300)] == [3, 3, 3, 3, 2, 2, 2, 2, 0, 0]


@pytest.mark.parametrize(
    ("length", "tokens", "rates"),
    [(2.6, 3, [1, 0.6, 0]), (1, 3, [0, 0, 0]), (4, 3, [1, 1, 1]), (2, 3, [1, 0, 0]), (3.5, 4, [1, 1, 0.5, 0])],
)
def test_synthetic_lengths(length: float, tokens: int, rates: list[float]) -> None:
    assert rates_for_length(length, tokens) == pytest.approx(rates)


def test_repr_and_hash() -> None:
    config, same = (resolve({**NGRAM, "prompt_lookup_max": 4}) for _ in range(2))
    other = resolve(NGRAM)
    assert config is not None and same is not None and other is not None
    assert repr(config) == "SpeculativeConfig(method='ngram', model=None, num_spec_tokens=3)"
    assert config.compute_hash() == same.compute_hash() != other.compute_hash()
    eagle = resolve({"method": "eagle", "model": "a/b", "num_speculative_tokens": 2})
    assert repr(eagle) == "SpeculativeConfig(method='eagle', model='a/b', num_spec_tokens=2)"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=6,
)
likely_values = st.one_of(
    st.integers(-2, 70),
    st.floats(-1, 30),
    st.sampled_from([*METHODS, *ALIASES, "greedy", "block", "a.B"]),
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 20), st.integers(0, 5)).map(list), max_size=3),
    st.lists(st.floats(0, 1), max_size=4),
    st.sampled_from(["[(0,), (0, 0)]", "fp8", "ngram", "/nowhere"]),
    st.fixed_dictionaries({}, optional={"max_nodes": st.integers(0, 70), "enable_entropy_verify": st.booleans()}),
    json_values,
)
known_keys = st.dictionaries(st.sampled_from([*KEYS, "tensor_parallel_size"]), likely_values, max_size=5)
sensible = st.fixed_dictionaries(
    {"method": st.sampled_from([*METHODS, *ALIASES]), "num_speculative_tokens": st.integers(1, 80)}
)
anything = st.one_of(
    json_values,
    st.dictionaries(st.text(max_size=12), json_values, max_size=4),
    known_keys,
    st.tuples(sensible, known_keys).map(lambda pair: {**pair[0], **pair[1]}),
    st.tuples(known_keys, sensible).map(lambda pair: {**pair[0], **pair[1]}),
)


@settings(max_examples=1500, deadline=None)
@given(anything)
def test_any_json_resolves_or_is_refused_by_name(wanted: Any) -> None:
    try:
        config = resolve(wanted)
    except ConfigError as error:
        assert "speculative_config" in str(error) and "\n" not in str(error)
        return
    if config is None:
        assert wanted is None
        return
    written = config.to_dict()
    assert resolve(json.loads(json.dumps(written))) == config
    assert resolve(yaml.safe_load(yaml.safe_dump(written))) == config
    mentioned = {note.key for note in config.notes} | set(written)
    for name, value in wanted.items():
        if value is not None and (declared := KEYS.get(name.replace("-", "_"))) and value != declared.default:
            same = getattr(config, declared.name, None) == declared.default  # written out in another way
            assert declared.name in mentioned or same, f"{name} was dropped without a word"


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(KEYS)), st.data())
def test_a_misspelt_key_is_answered_with_the_right_one(name: str, data: st.DataObject) -> None:
    i = data.draw(st.integers(1, len(name) - 1))
    wrong = data.draw(st.sampled_from([name[:i] + name[i + 1 :], name[:i] + "x" + name[i:], name + "s"]))
    if wrong in KEYS or len(name) < 5:
        return
    with pytest.raises(ConfigError, match="did you mean"):
        resolve({**NGRAM, wrong: 1})


def test_auto_lets_the_engine_choose() -> None:
    config = resolve({"method": "ngram", "num_speculative_tokens": "auto"})
    assert config is not None
    assert config.adaptive
    assert config.num_speculative_tokens == 16
    assert resolve({"method": "ngram", "num_speculative_tokens": 7, "adaptive": True}).max_nodes == 7  # type: ignore[union-attr]
    assert resolve(config.to_dict()) == config


def test_vllm_has_no_auto() -> None:
    with pytest.raises(ConfigError, match="num_speculative_tokens='auto' must be a whole number"):
        resolve({"method": "ngram", "num_speculative_tokens": "auto"}, as_of="0.32")


def test_auto_holds_for_all_drafters_together() -> None:
    parts = [{"method": "ngram"}, {"method": "suffix"}]
    config = resolve({"method": "hybrid", "num_speculative_tokens": "auto", "drafters": parts})
    assert config is not None
    assert config.adaptive
    with pytest.raises(ConfigError, match=r"drafters\[0\].num_speculative_tokens='auto' holds for all"):
        resolve({"method": "hybrid", "drafters": [{"method": "ngram", "num_speculative_tokens": "auto"}, parts[1]]})
