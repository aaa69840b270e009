"""GGUF files become directories that transformers loads, with the same numbers and the same tokens in them."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from tiny_gguf import byte_alphabet, vocabulary, write_and_convert, write_gguf
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig, LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from augury.model.errors import ModelError
from augury.model.gguf import convert, row_order
from augury.model.gguf_file import open_gguf


@pytest.fixture
def made(tmp_path: Path) -> Any:
    """Write a tiny GGUF file and convert it: (the model written, the directory made)."""
    return partial(write_and_convert, tmp_path)


def logits(model: torch.nn.Module) -> torch.Tensor:
    """Scores of a fixed text: they differ if any weight, head or frequency is wrong."""
    with torch.inference_mode():
        return model(torch.arange(3, 40).unsqueeze(0)).logits


@pytest.mark.parametrize("kind", [Kind.F32, Kind.F16, Kind.Q8_0, Kind.Q4_1])
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_logits_are_those_of_the_model_written(made: Any, architecture: str, kind: Kind) -> None:
    model, target = made(architecture, kind)
    loaded, report = AutoModelForCausalLM.from_pretrained(target, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    assert loaded.dtype == torch.float32
    for name, weight in model.named_parameters():
        assert torch.equal(loaded.get_parameter(name), weight), name
    torch.testing.assert_close(logits(loaded), logits(model), rtol=0, atol=1e-5)


def test_separate_output_matrix_is_not_tied(made: Any) -> None:
    model, target = made(tie_word_embeddings=False)
    loaded = AutoModelForCausalLM.from_pretrained(target)
    assert not loaded.config.tie_word_embeddings
    assert torch.equal(loaded.lm_head.weight, model.lm_head.weight)
    assert not torch.equal(loaded.lm_head.weight, loaded.model.embed_tokens.weight)


def test_biases_of_a_llama_are_unpermuted_too(made: Any) -> None:
    model, target = made(attention_bias=True)
    loaded = AutoModelForCausalLM.from_pretrained(target)
    torch.testing.assert_close(logits(loaded), logits(model), rtol=0, atol=1e-5)


def test_gemma_norms_windows_and_two_rotary_bases(made: Any) -> None:
    model, target = made(
        "gemma3",
        edit=lambda writer: writer.add_sliding_window(8),
        num_hidden_layers=6,
        query_pre_attn_scalar=16,
        sliding_window=8,
    )
    loaded = AutoModelForCausalLM.from_pretrained(target)
    assert loaded.config.layer_types == model.config.layer_types
    assert loaded.config.rope_parameters == model.config.rope_parameters
    torch.testing.assert_close(logits(loaded), logits(model), rtol=0, atol=1e-4)


def test_row_order_undoes_the_interleaving() -> None:
    # two heads of four rows: the file holds 0 2 1 3 of each
    assert row_order(8, 2).tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_config_comes_from_the_metadata(made: Any) -> None:
    _, target = made("llama", rope_parameters={"rope_type": "default", "rope_theta": 100000.0}, rms_norm_eps=1e-5)
    config = AutoConfig.from_pretrained(target)
    assert (config.model_type, config.num_hidden_layers, config.hidden_size) == ("llama", 2, 64)
    assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (4, 2, 16)
    assert (config.max_position_embeddings, config.vocab_size) == (256, len(vocabulary()[0]))
    assert config.rms_norm_eps == 1e-5  # not 9.999999747378752e-06
    assert config.rope_parameters["rope_theta"] == 100000.0
    assert config.tie_word_embeddings
    texts = vocabulary()[0]
    assert config.eos_token_id == texts.index("<|im_end|>")
    ends = GenerationConfig.from_pretrained(target).eos_token_id
    assert ends == [texts.index("<|im_end|>"), texts.index("<|endoftext|>")]


def test_a_window_makes_a_mistral(made: Any) -> None:
    _, target = made("llama", edit=lambda writer: writer.add_sliding_window(32))
    config = AutoConfig.from_pretrained(target)
    assert (config.model_type, config.sliding_window) == ("mistral", 32)
    AutoModelForCausalLM.from_pretrained(target)


def test_sampling_advice_reaches_the_generation_config(made: Any) -> None:
    _, target = made("llama", edit=lambda writer: writer.add_float32("general.sampling.temp", 0.7))
    assert GenerationConfig.from_pretrained(target).temperature == 0.7


def inverse_frequencies(config: Any) -> torch.Tensor:
    return LlamaRotaryEmbedding(config).inv_freq


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama3_scaling_is_found_from_its_factors(made: Any, factor: float) -> None:
    scaling = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": factor, "low_freq_factor": 1.0}
    scaling |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    config = LlamaConfig(head_dim=16, max_position_embeddings=131072, rope_parameters=scaling)
    plain = 500000.0 ** (-np.arange(8) / 8)
    factors = (plain / inverse_frequencies(config).numpy()).astype(np.float32)
    _, target = made(
        edit=lambda writer: writer.add_tensor("rope_freqs.weight", factors),
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
        max_position_embeddings=131072,
    )
    found = AutoConfig.from_pretrained(target)
    assert {**found.rope_parameters, **scaling} == found.rope_parameters
    torch.testing.assert_close(inverse_frequencies(found), inverse_frequencies(config))


def test_other_factors_become_an_exact_table(made: Any) -> None:
    factors = np.array([1, 1.5, 2, 2.5, 3, 5, 7, 9], np.float32)
    _, target = made(edit=lambda writer: writer.add_tensor("rope_freqs.weight", factors))
    found = inverse_frequencies(AutoConfig.from_pretrained(target))
    torch.testing.assert_close(found, torch.tensor(10000.0 ** (-np.arange(8) / 8) / factors, dtype=torch.float32))


def test_linear_and_yarn_scaling(tmp_path: Path) -> None:
    def scale(kind: gguf.RopeScalingType) -> Any:
        def edit(writer: gguf.GGUFWriter) -> None:
            writer.add_rope_scaling_type(kind)
            writer.add_rope_scaling_factor(4.0)
            writer.add_rope_scaling_orig_ctx_len(64)

        return edit

    found = {}
    for kind in (gguf.RopeScalingType.LINEAR, gguf.RopeScalingType.YARN):
        write_gguf(tmp_path / "tiny.gguf", edit=scale(kind))
        target = tmp_path / kind.value
        target.mkdir()
        convert(tmp_path / "tiny.gguf", target, quiet=True)
        found[kind.value] = AutoConfig.from_pretrained(target).rope_parameters
    assert found["linear"] == {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
    assert found["yarn"]["rope_type"] == "yarn"
    assert (found["yarn"]["factor"], found["yarn"]["original_max_position_embeddings"]) == (4.0, 64)


def broken(path: Path) -> str:
    """The message of the error that converting a file gives; it must fit on one line."""
    target = path.parent / "broken"
    target.mkdir(exist_ok=True)
    with pytest.raises(ModelError) as caught:
        convert(path, target, quiet=True)
    message = str(caught.value)
    assert "\n" not in message and path.name in message
    return message


@pytest.mark.parametrize("key", ["block_count", "embedding_length", "head_count", "ggml.tokens", "ggml.merges"])
def test_missing_metadata_is_named(tmp_path: Path, key: str) -> None:
    write_gguf(tmp_path / "a.gguf", skip=(key,))
    assert key in broken(tmp_path / "a.gguf")


def test_unknown_names_are_errors_that_list_the_known(tmp_path: Path) -> None:
    write_gguf(tmp_path / "a.gguf", pre="klingon")
    assert "'klingon'" in broken(tmp_path / "a.gguf") and "smollm" in broken(tmp_path / "a.gguf")
    write_gguf(tmp_path / "b.gguf", skip=("ggml.pre",))
    assert "tokenizer.ggml.pre" in broken(tmp_path / "b.gguf")
    writer = gguf.GGUFWriter(tmp_path / "c.gguf", "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    assert "'mamba'" in broken(tmp_path / "c.gguf") and "llama, qwen2, qwen3, gemma3" in broken(tmp_path / "c.gguf")


@pytest.mark.parametrize(("key", "value"), [("block_count", 2**32 - 1), ("attention.head_count", 0)])
def test_absurd_numbers_are_refused(tmp_path: Path, key: str, value: int) -> None:
    def edit(writer: gguf.GGUFWriter) -> None:
        writer.kv_data[0][f"llama.{key}"].value = value

    write_gguf(tmp_path / "a.gguf", edit=edit)
    assert "broken" in broken(tmp_path / "a.gguf")


@pytest.mark.parametrize("value", [0, "32"])
def test_an_alignment_that_is_no_number_of_bytes_is_refused(tmp_path: Path, value: Any) -> None:
    def edit(writer: gguf.GGUFWriter) -> None:
        add = writer.add_string if isinstance(value, str) else writer.add_uint32
        add("general.alignment", value)

    write_gguf(tmp_path / "a.gguf", edit=edit)
    assert f"general.alignment is {value!r}" in broken(tmp_path / "a.gguf")


def test_tensors_without_a_place_are_not_dropped(tmp_path: Path) -> None:
    extra = np.zeros((4, 64), np.float32)
    write_gguf(tmp_path / "a.gguf", edit=lambda writer: writer.add_tensor("blk.0.ffn_gate_inp.weight", extra))
    assert "blk.0.ffn_gate_inp.weight" in broken(tmp_path / "a.gguf")


def test_a_file_cut_anywhere_is_an_error_in_words(tmp_path: Path) -> None:
    write_gguf(tmp_path / "whole.gguf")
    data = (tmp_path / "whole.gguf").read_bytes()
    for end in [*range(0, len(data), 9973), 4, 8, 20, 24, 100, len(data) - 4]:
        (tmp_path / "cut.gguf").write_bytes(data[:end])
        message = broken(tmp_path / "cut.gguf")
        assert ("not a GGUF file" if end < 4 else "cut off") in message
    (tmp_path / "cut.gguf").write_bytes(b"PK\x03\x04" + data[4:])
    assert "not a GGUF file" in broken(tmp_path / "cut.gguf")


def test_reader_agrees_with_the_gguf_package(tmp_path: Path) -> None:
    write_gguf(tmp_path / "a.gguf", kind=Kind.Q4_1)
    ours, theirs = open_gguf(tmp_path / "a.gguf"), gguf.GGUFReader(tmp_path / "a.gguf")
    for name, value in theirs.fields.items():
        if not name.startswith("GGUF."):
            assert ours.metadata[name] == value.contents(), name
    for tensor in theirs.tensors:
        mine = ours.tensors[tensor.name]
        assert mine.shape == tuple(int(extent) for extent in reversed(tensor.shape))
        assert mine.raw.tobytes() == tensor.data.tobytes()


def test_byte_alphabet_is_the_usual_one() -> None:
    assert [byte_alphabet()[byte] for byte in (32, 10, 65, 0xC3)] == ["Ġ", "Ċ", "A", "Ã"]


def test_embedded_model_is_smollm2(default_model: Path) -> None:
    config = AutoConfig.from_pretrained(default_model)
    assert (config.model_type, config.num_hidden_layers, config.hidden_size) == ("llama", 30, 576)
    assert (config.num_attention_heads, config.num_key_value_heads, config.vocab_size) == (9, 3, 49152)
    assert (config.max_position_embeddings, config.rope_parameters["rope_theta"]) == (8192, 100000.0)
    assert config.tie_word_embeddings and config.rms_norm_eps == 1e-5
    assert json.loads((default_model / "generation_config.json").read_text())["eos_token_id"][0] == 2


def test_embedded_model_speaks(default_model: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(default_model)
    model = AutoModelForCausalLM.from_pretrained(default_model)
    ids = tokenizer.encode("The capital of France is", return_tensors="pt")
    with torch.inference_mode():
        assert tokenizer.decode(model(ids).logits[0, -1].argmax()) == " Paris"


def test_modules_load_without_torch() -> None:
    code = "import sys, augury.model.store; print([m for m in ('torch', 'numpy', 'rich', 'gguf') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
