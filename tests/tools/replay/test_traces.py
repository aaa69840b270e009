"""Traces: every format by its content, every break by file and line."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from augury.tools.replay import traces
from augury.tools.replay.records import Conversation
from augury.tools.replay.tokens import Bytes, Words, encoder, scripts
from augury.tools.replay.traces import TraceError, TraceReader

CHAT = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
CALL = {"id": "1", "type": "function", "function": {"name": "look", "arguments": '{"at":"this"}'}}
CALLED = '<tool_call>\n{"name": "look", "arguments": {"at":"this"}}\n</tool_call>'


def write(path: Path, *records: Any) -> Path:
    """JSON lines."""
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def read(path: Path, **options: Any) -> list[Conversation]:
    return list(TraceReader([path], **options))


def only(path: Path, record: Any) -> Conversation:
    (found,) = read(write(path, record))
    return found


def responses(found: Conversation) -> list[Any]:
    return [found.turns[i].said for i in found.responses]


# --- shapes --------------------------------------------------------------------------------------------------------

SHAPES: dict[str, tuple[Any, list[Any]]] = {
    "messages": ({"messages": CHAT}, ["Hello"]),
    "two turns": ({"messages": CHAT + CHAT}, ["Hello", "Hello"]),
    "sharegpt": ({"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Yo"}]}, ["Yo"]),
    "trajectory": ({"task_id": 3, "traj": [*CHAT, {"role": "tool", "content": "x"}]}, ["Hello"]),
    "tool call": ({"messages": [{"role": "assistant", "content": None, "tool_calls": [CALL]}]}, [CALLED]),
    "prompt and completion": ({"prompt": "1 2", "completion": "3"}, ["3"]),
    "prompt and output": ({"prompt": "1 2", "output": "3"}, ["3"]),
    "prompt and response": ({"prompt": "1 2", "response": "3"}, ["3"]),
    "prompt and response in JSON": ({"prompt": "1 2", "response": '{"a": 1}'}, ['{"a": 1}']),
    "question and answer": ({"question": "why", "answer": "so"}, ["so"]),
    "instruction": ({"instruction": "add", "input": "1 1", "output": "2"}, ["2"]),
    "chat log": ({"request": {"messages": CHAT}, "response": {"choices": [{"message": {"content": "A"}}]}}, ["A"]),
    "text log": ({"request": {"prompt": "p"}, "response": {"choices": [{"text": "A"}]}}, ["A"]),
    "log in strings": ({"request": json.dumps({"prompt": "p"}), "response": '{"choices": [{"text": "A"}]}'}, ["A"]),
    "batch file": ({"body": {"messages": CHAT}, "response": {"body": {"choices": [{"text": "A"}]}}}, ["A"]),
    "request alone": ({"request": {"messages": CHAT}}, []),
    "failed request": ({"request": {"messages": CHAT}, "response": {"error": {"message": "no"}}}, []),
    "choices beside messages": ({"messages": CHAT, "choices": [{"message": {"content": "A"}}]}, ["A"]),
    "the right answer is no response": ({"messages": CHAT, "answer": "42"}, ["Hello"]),
    "parts": ({"messages": [{"role": "assistant", "content": [{"text": "A"}, {"type": "image"}]}]}, ["A"]),
    "token ids": ({"prompt_token_ids": [1, 2], "token_ids": [3, 4]}, [[3, 4]]),
    "prompts alone": ({"turns": ["a", "b"]}, []),
    "bare list of messages": (CHAT, ["Hello"]),
}


@pytest.mark.parametrize("name", SHAPES)
def test_shapes(name: str, tmp_path: Path) -> None:
    record, expected = SHAPES[name]
    if isinstance(record, list):  # as a list in a list: a line that is a list would be a list of records
        path = tmp_path / "a"
        path.write_text(json.dumps([record]))
        (found,) = read(path)
    else:
        found = only(tmp_path / "a", record)
    assert responses(found) == expected


STEP = {"action": "ls", "observation": "setup.py", "response": "I look.\nls", "thought": "I look.", "state": "{}"}
DEMO = [{**turn, "agent": "primary", "is_demo": True} for turn in CHAT]


@pytest.mark.parametrize("indent", [None, 2])
def test_a_run_of_swe_agent(indent: int | None, tmp_path: Path) -> None:
    history = [
        {"role": "system", "content": "Mend it."},
        *DEMO,
        {"role": "user", "content": [{"type": "text", "text": "go"}]},
    ]
    history += [
        {"role": "assistant", "content": "I look.\nls", "thought": "I look."},
        {"role": "user", "content": "setup.py"},
    ]
    file = tmp_path / "django__django-1.traj"
    written = {
        "environment": "swe_main",
        "trajectory": [STEP],
        "history": history,
        "info": {"exit_status": "submitted"},
    }
    file.write_text(json.dumps(written, indent=indent))
    (found,) = read(file)
    assert responses(found) == ["I look.\nls"], "a demonstration is no answer of the model's"
    assert [turn.said for turn in found.turns][:4] == ["Mend it.", "Hi", "Hello", "go"]
    file.write_text(json.dumps({"trajectory": [STEP, {**STEP, "response": ""}], "info": {}}, indent=indent))
    (found,) = read(file)
    assert responses(found) == ["I look.\nls", "I look.\nls"] and found.turns[1].said == "setup.py"


def test_every_choice_is_a_response_to_the_same_prompt(tmp_path: Path) -> None:
    found = read(write(tmp_path / "a", {"prompt": "p", "choices": [{"text": "A"}, {"text": "B"}]}))
    assert [responses(one) for one in found] == [["A"], ["B"]]
    assert all(one.turns[0].said == "p" for one in found)


def test_thoughts_and_tool_results(tmp_path: Path) -> None:
    turns = [
        {"role": "developer", "content": "be kind"},
        {"role": "assistant", "reasoning_content": "hm", "content": "A"},
        {"role": "user", "content": [{"type": "tool_result", "content": [{"type": "text", "text": "R"}]}]},
        {"role": "assistant", "content": [{"type": "tool_use", "name": "f", "input": {"x": 1}}]},
    ]
    found = only(tmp_path / "a", {"messages": turns})
    assert [turn.role for turn in found.turns] == ["system", "assistant", "user", "assistant"]
    assert responses(found)[0] == "<think>\nhm\n</think>\nA"
    assert found.turns[2].said == "R"
    assert '"name": "f", "arguments": {"x": 1}' in responses(found)[1]


def test_class_and_tenant(tmp_path: Path) -> None:
    path = write(tmp_path / "trace", {"messages": CHAT, "category": "math", "user": {"org": 7}}, {"messages": CHAT})
    assert [one.label for one in read(path)] == ["math", "trace"]
    (first, _) = read(write(tmp_path / "b", *[{"messages": CHAT, "user": {"org": 7}}] * 2), tenant_field="user.org")
    assert first.tenant == "7"
    with pytest.raises(TraceError, match=r"trace, line 2: --tenant-field user.org"):
        read(path, tenant_field="user.org")


# --- files ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("chunk", [7, 1 << 20])
@pytest.mark.parametrize("packed", [False, True])
def test_a_list_is_read_element_by_element(
    indent: int | None, chunk: int, packed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traces, "CHUNK", chunk)
    records = [{"prompt": f"p{i}", "completion": 'c "]},[{' * i + "é\n"} for i in range(12)]
    data = json.dumps(records, indent=indent, ensure_ascii=False).encode()
    path = tmp_path / "named.log"  # the name says nothing
    path.write_bytes(gzip.compress(data) if packed else data)
    reader = TraceReader([path])
    assert [one.turns[1].said for one in reader] == [record["completion"] for record in records]
    assert reader.formats == {str(path): "JSON list"} and reader.torn == []


@pytest.mark.parametrize("chunk", [5, 1 << 20])
def test_lines(chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "CHUNK", chunk)
    path = tmp_path / "a.json"
    lines = [json.dumps({"prompt": "p", "completion": f"{i}\u2028\x85"}, ensure_ascii=False) for i in range(5)]
    path.write_text("\ufeff" + "\r\n".join(lines) + "\r\n\r\n", encoding="utf-8")
    reader = TraceReader([path])
    assert [one.turns[1].said for one in reader] == [f"{i}\u2028\x85" for i in range(5)]
    assert reader.bytes_read == reader.total_bytes == path.stat().st_size


def test_a_document_over_several_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"messages": CHAT}, indent=2))
    assert len(read(path)) == 1
    for indent in (None, 2):
        path.write_text(json.dumps({"data": [{"messages": CHAT}] * 3}, indent=indent))
        assert [one.where for one in read(path)][2].endswith("element 3")


def test_a_torn_last_line_is_counted_and_skipped(tmp_path: Path) -> None:
    path = write(tmp_path / "a", *[{"messages": CHAT}] * 3)
    path.write_text(path.read_text()[:-20])
    reader = TraceReader([path])
    assert len(list(reader)) == 2
    assert reader.torn == [f"{path}, line 3"]


def test_a_torn_list_and_a_torn_archive(tmp_path: Path) -> None:
    text = json.dumps([{"messages": CHAT}] * 3)
    for cut in (20, 2):
        path = tmp_path / "a"
        path.write_text(text[:-cut])
        reader = TraceReader([path])
        assert len(list(reader)) == 2 and len(reader.torn) == 1
    path.write_text(text[:-1])
    reader = TraceReader([path])
    assert len(list(reader)) == 3 and len(reader.torn) == 1
    packed = gzip.compress("".join(json.dumps({"prompt": str(i), "output": "x"}) + "\n" for i in range(9999)).encode())
    path.write_bytes(packed[: len(packed) // 2])
    reader = TraceReader([path])
    assert 0 < len(list(reader)) < 9999 and reader.torn


BROKEN = {
    '{"messages": [}\n{"messages": []}\n': "line 1: not JSON",
    '{"messages": []}\n{"messages"\n{"messages": []}\n': "line 2: not JSON",
    '{"prompt": "cut': "line 1: not JSON",
    '[{"messages": []}, {"messages": oops}, {"messages": []}]': "record 2: not JSON",
    '{"messages": [{"content": "x"}]}': "line 1: message 0 has no role",
    '{"messages": ["x"]}': "line 1: message 0 is not an object",
    '{"messages": [{"role": "user", "content": 3}]}': "content must be text",
    '{"a": 1, "b": 2}': "its fields are a, b",
    "[[1, 2]]": "record 1: expected a JSON object",
    '{"prompt_token_ids": [1], "token_ids": [1, -5]}': r"token_ids\[1\] is -5",
    '{"prompt_token_ids": [1], "token_ids": [4294967296]}': "from 0 to 2147483647",
    '{"prompt_token_ids": [1, true]}': r"prompt_token_ids\[1\] is True",
    '{"prompt": "p", "choices": [{"index": 0}]}': "'choices' holds neither",
    '{"messages": [{"role": "assistant", "tool_calls": [{"id": 1}]}]}': "a tool call has no name",
    "hello\n": "not a trace",
    "": "it is empty",
    "[" * 100_000: "record 1",
    '{"a":' * 100_000: "nested too deeply",
}


@pytest.mark.parametrize("text", BROKEN, ids=range(len(BROKEN)))
def test_broken(text: str, tmp_path: Path) -> None:
    path = tmp_path / "broken"
    path.write_text(text)
    with pytest.raises(TraceError, match=BROKEN[text]) as error:
        read(path)
    assert str(path) in str(error.value) and "\n" not in str(error.value)


def test_not_text(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b'{"prompt": "\xff\xfe"}')
    with pytest.raises(TraceError, match="not UTF-8"):
        read(path)
    path.write_bytes(gzip.compress(b'{"prompt": "p"}')[:12] + b"\0" * 40)
    with pytest.raises(TraceError, match="damaged"):
        read(path)
    for missing in (tmp_path / "no", tmp_path):
        with pytest.raises(TraceError, match=r"no such file|a directory"):
            read(missing)


# --- vLLM's log ----------------------------------------------------------------------------------------------------

LOG = r"""INFO 05-01 12:00:00 [api_server.py:1] Started server process
INFO 05-01 12:00:01 logger.py:39] Received request cmpl-1-0: prompt: 'It\'s "2"\nprompt: \'x\'', params: SamplingParams(n=1), prompt_token_ids: None, lora_request: None.
(APIServer pid=1) DEBUG 05-01 [logger.py:5] Request chatcmpl-2 details: prompt: "it's", prompt_token_ids: None, prompt_embeds shape: None.
(APIServer pid=1) INFO 05-01 [logger.py:5] Received request chatcmpl-2: params: SamplingParams(n=1), lora_request: None.
INFO 05-01 [logger.py:9] Generated response chatcmpl-2 (streaming delta): output: 'He', output_token_ids: None, finish_reason: None
INFO 05-01 [logger.py:9] Generated response chatcmpl-2 (streaming complete): output: 'Hello', output_token_ids: None, finish_reason: stop
INFO 05-01 12:00:01 logger.py:39] Received request 3: prompt: None, params: SamplingParams(n=1), prompt_token_ids: [5, 6], lora_request: None.
INFO 05-01 [logger.py:9] Generated response 3: output: 'x', output_token_ids: [7, 8], finish_reason: stop
INFO 05-01 [metrics.py:9] Avg prompt throughput: 1.0 tokens/s
"""  # noqa: E501


def test_vllm_log(tmp_path: Path) -> None:
    path = tmp_path / "server.json"
    path.write_text(LOG)
    chat, ids, alone = read(path)
    assert [turn.said for turn in chat.turns] == ["it's", "Hello"] and responses(chat) == ["Hello"]
    assert [turn.said for turn in ids.turns] == [[5, 6], [7, 8]]
    assert [turn.said for turn in alone.turns] == ["It's \"2\"\nprompt: 'x'"] and responses(alone) == []


# --- tokens --------------------------------------------------------------------------------------------------------


def laid_out(path: Path, encoder: Any, *records: Any) -> list[Any]:
    return list(scripts(TraceReader([write(path, *records)]), encoder))


def test_layout_of_a_chat(tmp_path: Path) -> None:
    (script,) = laid_out(tmp_path / "a", Bytes(), {"messages": [*CHAT, {"role": "user", "content": "?"}, CHAT[1]]})
    start, end = chr(Bytes.start), chr(Bytes.end)
    expected = (
        f"{start}user\nHi{end}\n{start}assistant\nHello{end}\n{start}user\n?{end}\n{start}assistant\nHello{end}\n"
    )
    assert "".join(map(chr, script.text)) == expected
    assert ["".join(map(chr, script.text[a:b])) for a, b in script.spans] == [f"Hello{end}"] * 2


def test_layout_of_bare_text_and_of_ids(tmp_path: Path) -> None:
    records = {"prompt": "ab", "completion": "cd"}, {"prompt_token_ids": [9, 8], "token_ids": [7]}, {"prompt": "x"}
    text, ids, prompt = laid_out(tmp_path / "a", Bytes(), *records)
    assert text.text.tolist() == [*b"abcd", Bytes.end] and text.spans == [(2, 5)]
    assert ids.text.tolist() == [9, 8, 7] and ids.spans == [(2, 3)]
    assert prompt.spans == []


def test_earlier_answers_of_a_logged_request_belong_to_its_prompt(tmp_path: Path) -> None:
    logged = {"request": {"messages": CHAT}, "response": {"choices": [{"message": {"content": "A"}}]}}
    (script,) = laid_out(tmp_path / "a", Bytes(), logged)
    assert [script.text[a:b].tolist() for a, b in script.spans] == [[ord("A"), Bytes.end]]


def test_words_are_the_same_in_every_run() -> None:
    one, two = Words().encode(["the cat, the cat", "b"]), Words().encode(["b", "the cat, the cat"])
    assert one == two[::-1]
    assert one[0][1] == one[0][4] and len(set(one[0])) == 4  # "the", " cat", ",", " the"


def test_a_models_tokenizer(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    inner = Tokenizer(
        models.BPE(vocab={c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, merges=[])
    )
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    inner.add_special_tokens(["<|im_end|>"])
    inner.save(str(tmp_path / "tokenizer.json"))
    model = encoder(str(tmp_path))
    assert (model.start, model.end) == (257, 256)  # no start token of its own, so an id that is not used
    (script,) = laid_out(tmp_path / "a", model, {"messages": [CHAT[0], {"role": "assistant", "content": "a\ud800b"}]})
    assert model.decode(script.text[slice(*script.spans[0])].tolist()) == "a?b<|im_end|>"
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match="not a tokenizer"):
        encoder(str(tmp_path))
    with pytest.raises(ValueError, match="no tokenizer"):
        encoder(str(tmp_path / "elsewhere"))
