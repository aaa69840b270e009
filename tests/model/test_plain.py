"""What is read without transformers is what transformers would have read."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2.exceptions import TemplateError

from augury.model.chat_template import render
from augury.model.checkpoint import layers_config, read_config
from augury.model.errors import ModelError
from augury.model.plain_config import PlainConfig, plain_config
from augury.model.plain_tokenizer import PlainTokenizer, plain_tokenizer
from augury.model.store import resolve
from augury.model.tokenizer import Tokenizer

OTHER = [
    {"model_type": "qwen2"},
    {"hidden_act": "gelu"},
    {"hidden_size": 48.0},
    {"hidden_size": "48"},
    {"num_attention_heads": 5},
    {"num_key_value_heads": 3},
    {"num_key_value_heads": None},
    {"rms_norm_eps": 1},
    {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}},
    {"rope_parameters": {"rope_theta": 1e4}},
    {"rope_theta": 1e4},
    {"rope_scaling": None},
    {"quantization_config": {"quant_method": "fp8"}},
    {"tie_word_embeddings": 1},
    {"attention_dropout": 0.1},
    {"something": "new"},
]


def write(directory: Path, raw: dict[str, Any]) -> Path:
    (directory / "config.json").write_text(json.dumps(raw))
    return directory


@pytest.mark.parametrize("which", ["toy", "embedded"])
def test_a_plain_configuration_is_transformers(which: str, toy_model: Path) -> None:
    directory = toy_model if which == "toy" else resolve("default")
    ours, theirs = layers_config(directory), read_config(directory)
    assert isinstance(ours, PlainConfig)
    for field in fields(ours):
        assert getattr(ours, field.name) == getattr(theirs, field.name, None), field.name


@pytest.mark.parametrize("change", OTHER, ids=str)
def test_anything_unusual_is_left_to_transformers(change: dict[str, Any], toy_model: Path, tmp_path: Path) -> None:
    raw = json.loads((toy_model / "config.json").read_text())
    assert plain_config(write(tmp_path, raw)) is not None
    assert plain_config(write(tmp_path, raw | change)) is None


def test_nothing_is_guessed(toy_model: Path, tmp_path: Path) -> None:
    raw = json.loads((toy_model / "config.json").read_text())
    for name in (f.name for f in fields(PlainConfig) if f.name not in ("mlp_bias", "quantization_config")):
        assert plain_config(write(tmp_path, {k: v for k, v in raw.items() if k != name})) is None, name
    (tmp_path / "config.json").write_text("[1")
    assert plain_config(tmp_path) is None


@pytest.fixture(scope="module")
def plain() -> PlainTokenizer:
    found = plain_tokenizer(resolve("default"))
    assert found is not None
    return found


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=60) | st.lists(st.sampled_from(["<|im_end|>", " a", "\n", "é", "\u200d", "1234"])).map("".join))
def test_texts_have_the_same_tokens(plain: PlainTokenizer, text: str) -> None:
    for special in (True, False):
        assert plain.encode(text, add_special_tokens=special) == plain.whole.encode(text, add_special_tokens=special)
    ids = plain.encode(text)
    assert plain.convert_ids_to_tokens(ids) == plain.whole.convert_ids_to_tokens(ids)


def test_it_answers_as_transformers_tokenizer_does(plain: PlainTokenizer) -> None:
    whole = plain.whole
    assert len(plain) == len(whole) and plain.get_vocab() == whole.get_vocab()
    assert plain.special_tokens_map == whole.special_tokens_map and plain.eos_token_id == whole.eos_token_id
    assert plain.chat_template == whole.chat_template and plain.unk_token_id == whole.unk_token_id
    own, theirs = (json.loads(one.backend_tokenizer.to_str()) for one in (plain, whole))
    own.pop("post_processor"), theirs.pop("post_processor")  # none, and one that adds nothing
    assert own == theirs
    with pytest.raises(ModelError, match="lone surrogate"):
        Tokenizer(resolve("default")).encode("\ud800")


MESSAGES = [
    [{"role": "user", "content": "Hello"}],
    [
        {"role": "system", "content": " x\n"},
        {"role": "user", "content": "<b>&'\"é"},
        {"role": "assistant", "content": ""},
    ],
    [{"role": "user", "content": "a", "tool_calls": [{"function": {"name": "f", "arguments": {"x": [1, None, 2.5]}}}]}],
]
TEMPLATES = [
    None,
    "  {%- for m in messages %}\n {% if loop.last %}{% continue %}{% endif %}\n{{ m|tojson(indent=2) }}\n{% endfor %}",
    "{{ bos_token }}{{ tools | tojson if tools else 'no' }}{{ documents }}{{ extra }}{{ messages[0].content | upper }}",
    "{{ strftime_now('%Y') }}{{ eos_token }}{{ add_generation_prompt }}{{ undefined_name }}",
]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"add_generation_prompt": True, "continue_final_message": False},
    {"tools": [{"type": "function", "function": {"name": "f", "description": "é <"}}], "extra": "x", "bos_token": "B"},
    {"documents": [{"title": "t", "text": "u"}], "extra": {"a": [True]}},
]


@pytest.mark.parametrize("template", TEMPLATES)
def test_conversations_are_written_as_transformers_writes_them(template: str | None, plain: PlainTokenizer) -> None:
    for messages in MESSAGES:
        for options in OPTIONS:
            given = {**options, "chat_template": template, "tokenize": False}
            text = render(plain.chat_template, plain.special_tokens_map, messages, given)
            assert text is not None and text == plain.whole.apply_chat_template(messages, **given)


@pytest.mark.parametrize(
    ("messages", "options"),
    [
        ([], {}),
        (MESSAGES[0], {"tokenize": True}),
        (MESSAGES[0], {"continue_final_message": True}),
        (MESSAGES[0], {"tools": [test_nothing_is_guessed]}),
        (MESSAGES[0], {"sanitize_control_tokens": False}),
        (MESSAGES[0], {"chat_template": "{% set n = namespace(x=1) %}{{ n.x }}"}),
        (MESSAGES[0], {"chat_template": "{% generation %}a{% endgeneration %}"}),
        ([{"role": "user", "content": "a", "reasoning": "b"}], {}),
        ([{"role": "user", "content": Path("a")}], {}),
        ([[{"role": "user", "content": "a"}]], {}),
    ],
)
def test_the_unusual_is_left_to_transformers(messages: Any, options: dict[str, Any], plain: PlainTokenizer) -> None:
    assert render(plain.chat_template, plain.special_tokens_map, messages, {"tokenize": False} | options) is None


def test_a_template_can_refuse_and_cannot_escape(plain: PlainTokenizer) -> None:
    for template in ("{{ raise_exception('no') }}", "{{ ''.__class__.__mro__ }}", "{{ messages.append(1) }}"):
        with pytest.raises(TemplateError):
            plain.apply_chat_template(MESSAGES[0], chat_template=template, tokenize=False)


@pytest.mark.parametrize(
    "change", [{"add_bos_token": True}, {"pad_token": "<pad>"}, {"backend": "x"}, {"unk_token": None}]
)
def test_other_settings_are_transformers_business(change: dict[str, Any], tmp_path: Path) -> None:
    source = resolve("default")
    settings_ = json.loads((source / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer.json").symlink_to(source / "tokenizer.json")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings_))
    assert plain_tokenizer(tmp_path) is not None
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings_ | change))
    assert plain_tokenizer(tmp_path) is None


def test_who_asks_for_transformers_tokenizer_gets_it() -> None:
    tokenizer = Tokenizer(resolve("default"))
    whole = tokenizer.whole()
    whole.chat_template = "{{ messages[0].content }}"
    assert tokenizer.chat([{"role": "user", "content": "Hello"}]) == tokenizer.encode("Hello")
