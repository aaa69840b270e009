"""Which parser is chosen, where an answer's reasoning begins, and texts of the models' own templates."""

from __future__ import annotations

from typing import Any

import pytest

from augury.config.errors import ConfigError
from augury.model.errors import ModelError
from augury.serve.parsers.choose import SIGNS, TOOL_PARSERS, Parsers, named_parsers, recognised, settled, thinks
from augury.serve.parsers.events import merged
from augury.serve.parsers.typed import typed, types_of
from augury.serve.speech import Speech, short_id


def found(tool: str | None, text: str, reasoning: str | None = None, begins: bool | None = True) -> list[Any]:
    parser = Parsers(tool, reasoning).of({"f": {"n": {"type": "integer"}}}, begins)
    return [tuple(event) for event in merged([*parser.feed(text), *parser.finish()])]


def test_names_are_vllms_and_others_are_refused_with_those_there_are() -> None:
    assert named_parsers("hermes", "qwen3") == ("hermes", "qwen3")
    with pytest.raises(ConfigError, match=r"--tool-call-parser jamba: .*hermes"):
        named_parsers("jamba", None)
    with pytest.raises(ConfigError, match=r"--reasoning-parser none: .*deepseek_r1"):
        named_parsers(None, "none")
    assert {name for name, _ in SIGNS} <= set(TOOL_PARSERS)


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{% if tools %}<tool_call>\n{'name': ...}\n</tool_call>", "hermes"),
        ("<tool_call>\n<function=example>\n<parameter=x>", "qwen3_coder"),
        ("<tool_call>{name}\n<arg_key>k</arg_key>", "glm45"),
        ("[AVAILABLE_TOOLS] [TOOL_CALLS]", "mistral"),
        ("<｜tool▁calls▁begin｜>function<｜tool▁sep｜>\n```json", "deepseek_v3"),
        ("<｜tool▁calls▁begin｜>", "deepseek_v31"),
        ("<|start|>assistant<|channel|>analysis", "openai"),
        ("<|tool_call|>", "granite"),
        ("Environment: ipython <|python_tag|>", "llama3_json"),
        ("<|python_start|>", "llama4_pythonic"),
        ("{{ messages }}", None),
    ],
)
def test_a_template_tells_its_parser(template: str, name: str | None) -> None:
    assert recognised(template) == name
    assert settled(Parsers(), False, template).tool is None  # only where models may call freely
    assert settled(Parsers("hermes"), True, template).tool == "hermes"
    if name is None:
        with pytest.raises(ModelError, match="--tool-call-parser"):
            settled(Parsers(), True, template)
    else:
        assert settled(Parsers(), True, template).tool == name


def test_reasoning_begins_as_the_prompt_leaves_it() -> None:
    qwen, v3 = Parsers(None, "qwen3").family, Parsers(None, "deepseek_v3").family
    assert thinks(qwen, {}, "<|im_start|>assistant\n") and not thinks(None, {}, "<think>")
    assert not thinks(qwen, {"enable_thinking": False}, "assistant\n")
    assert not thinks(qwen, {}, "assistant\n<think>\n\n</think>\n\n")
    assert thinks(qwen, {"enable_thinking": False}, "assistant\n<think>\n")  # what the prompt says is what counts
    assert not thinks(v3, {}, "assistant") and thinks(v3, {"thinking": True}, "assistant")


def test_reasoning_that_nothing_opens_or_closes() -> None:
    assert found(None, "so</think>Hi", "deepseek_r1") == [("reasoning", "so"), ("content", "Hi")]
    assert found(None, "still thinking", "deepseek_r1") == [("reasoning", "still thinking")]
    assert found(None, "Hi", "qwen3", None) == [("content", "Hi")]
    assert found(None, "Hi", "qwen3", False) == [("content", "Hi")]
    assert found(None, "<think>so</think>Hi", "qwen3", False) == [("reasoning", "so"), ("content", "Hi")]
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'  # ends the reasoning as well
    assert found("hermes", f"so{call}", "qwen3") == [("reasoning", "so"), ("call", "f"), ("arguments", "{}")]
    assert found(None, "Here's my thought process: a Here is my response: b", "granite")[1] == ("content", " b")
    assert found(None, "Hereafter", "granite") == [("content", "Hereafter")]


def test_harmony_reads_both_whichever_is_named() -> None:
    text = "<|channel|>analysis<|message|>so<|end|><|start|>assistant<|channel|>final<|message|>Hi<|return|>"
    wanted = [("reasoning", "so"), ("content", "Hi")]
    assert found("openai", text) == found(None, text, "openai_gptoss") == wanted
    assert found("openai", text[: text.index("final")]) == wanted[:1]  # a header that is cut off is not shown
    browser = "<|channel|>commentary to=browser.open<|message|>{}<|call|>"
    assert found("openai", browser) == []
    assert found("openai", "plain text") == [("content", "plain text")]


def test_what_is_nearly_a_call() -> None:
    assert found("hermes", '<tool_call>{"name": "f"}</tool_call>') == [
        ("content", '<tool_call>{"name": "f"}</tool_call>')
    ]
    assert found("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1}}}</tool_call> ok') == [
        ("call", "f"),
        ("arguments", '{"a": 1}'),
        ("content", "ok"),
    ]
    assert found("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1</tool_call>!')[2:] == [
        ("content", "!")
    ]  # the tag ends what the model left open
    assert found("qwen3_coder", "<tool_call><function=f><parameter=n>x</parameter>")[1] == ("arguments", '{"n": "x"}')
    assert found("glm45", "<tool_call>not a name\n</tool_call>")[0][0] == "content"
    assert found("pythonic", "[f(n=open('x'))]") == [("content", "[f(n=open('x'))]")]


def test_values_have_the_types_of_their_schema() -> None:
    assert typed("3", {"integer", "string"}) == 3 and typed("x", {"integer"}) == "x"
    assert typed("2.0", {"number"}) == 2 and typed("inf", {"number"}) == "inf" and typed("nan", {"number"}) == "nan"
    assert typed("True", {"boolean"}) is True and typed("maybe", {"boolean"}) == "maybe"
    assert typed("null", {"null", "string"}) is None and typed("[1]", {"array"}) == [1]
    assert typed("[1e999]", {"array"}) == "[1e999]" and typed("[" * 100_000, {"array"}) == "[" * 100_000
    assert types_of({"anyOf": [{"type": "int"}, {"enum": [None, True]}]}) == {"integer", "null", "boolean"}
    assert types_of({}) == types_of("x") == {"string"}
    loop: dict[str, Any] = {}
    loop["anyOf"] = [loop]
    assert types_of(loop) == {"string"}


def test_half_a_pair_of_surrogates_can_be_sent() -> None:
    """A model may write it as an escape; a response is UTF-8."""
    half = r'"\ud800"'
    for name, text in (
        ("hermes", f'<tool_call>{{"name": {half}, "arguments": {{}}}}</tool_call>'),
        ("hermes", f'<tool_call>{{"name": "f", "arguments": {{"a": {half}}}}}</tool_call>'),
        ("pythonic", f"[f(a={half})]"),
        ("qwen3_coder", f"<function=f><parameter=o>[{half}]</parameter></function>"),
    ):
        parser = Parsers(name).of({"f": {"o": {"type": "array"}}})
        for event in [*parser.feed(text), *parser.finish()]:
            assert event.text.encode(), text


def test_speech_counts_calls_and_leaves_out_what_is_not_wanted() -> None:
    text = "<think>so</think>" + '<tool_call>{"name": "f", "arguments": {}}</tool_call>' * 2
    speech = Speech(Parsers("hermes", "qwen3").of({}), most_calls=1, reasons=False)
    events = [event for piece in (text[:30], text[30:]) for event in speech.take(piece, False)]
    events += speech.take("", True)
    assert [(event.kind, number) for event, number in events] == [("call", 0), ("arguments", 0)]
    assert speech.calls == 1
    assert len(short_id()) == 9 and short_id().isalnum()
