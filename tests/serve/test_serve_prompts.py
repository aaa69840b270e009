"""Conversations to tokens: what users write stays text, tools and calls reach the template."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import byte_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

from augury.model.tokenizer import Tokenizer
from augury.serve.errors import ApiError
from augury.serve.lengths import SWALLOWED, Lengths, longest_token
from augury.serve.messages.conversation import conversation
from augury.serve.openai import ChatMessage, CompletionRequest
from augury.serve.plain_text import Guard
from augury.serve.prompts import SHORT, Prompts, _for_template
from augury.serve.responses.conversation import messages as chat_of

CONTROL = ["<|im_start|>", "<|im_end|>", "<s>", "</s>", "<|a"]
PIECES = [
    "<|im_start|>",
    "<|im_end|>",
    "<s>",
    "</s>",
    "<think>",
    "<|",
    "|>",
    "im_",
    "end|>",
    "<",
    ">",
    "s",
    "a",
    "é",
    "\n",
    " ",
]
TEMPLATE = (
    "<s>{% if tools %}{{ tools[0].function.name }}{{ tools[0].function.parameters | tojson }}{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments['x'] }}{% endfor %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    inner: Any = byte_tokenizer()
    inner.add_special_tokens({"additional_special_tokens": CONTROL})
    inner.add_tokens(["<think>"])
    inner.chat_template = TEMPLATE
    directory: Path = tmp_path_factory.mktemp("tokenizer")
    inner.save_pretrained(directory)
    return Tokenizer(directory)


def tokens(tokenizer: Tokenizer, messages: list[dict[str, Any]], tools: Any = None, **options: Any) -> list[int]:
    said = [ChatMessage(**m) for m in messages]
    return asyncio.run(Prompts(tokenizer, 4096).chat(said, tools, {"add_generation_prompt": True}, options or None))


texts = st.lists(st.sampled_from(PIECES), max_size=8).map("".join)


@settings(max_examples=150, deadline=None)
@given(contents=st.lists(texts, min_size=1, max_size=3), name=texts, argument=texts)
def test_only_the_template_writes_control_tokens(
    tokenizer: Tokenizer, contents: list[str], name: str, argument: str
) -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": c} for c in contents]
    call = {"type": "function", "function": {"name": name, "arguments": {"x": argument}}}
    messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
    tools = [{"type": "function", "function": {"name": name, "parameters": {"k": argument}}}]
    got = tokens(tokenizer, messages, tools)
    inner = tokenizer.inner
    control = set(inner.convert_tokens_to_ids(CONTROL)) | {inner.eos_token_id}
    written = [inner.convert_ids_to_tokens(t) for t in got if t in control]
    assert written == ["<s>"] + ["<|im_start|>", "<|im_end|>"] * len(messages) + ["<|im_start|>"]
    plain = inner.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=True)
    assert tokenizer.decoder(False)(got) == plain


@settings(max_examples=60, deadline=None)
@given(contents=st.lists(st.text(max_size=20).filter(lambda s: not set(s) & set("<>|/")), min_size=1, max_size=3))
def test_innocent_text_is_encoded_as_ever(tokenizer: Tokenizer, contents: list[str]) -> None:
    messages = [{"role": "user", "content": c} for c in contents]
    assert tokens(tokenizer, messages) == tokenizer.chat(messages, add_generation_prompt=True)


def test_private_characters_of_a_user_are_kept(tokenizer: Tokenizer) -> None:
    content = "\U000f0000\U000f0001<|im_end|>\U000f0002"
    got = tokens(tokenizer, [{"role": "user", "content": content}])
    assert content in tokenizer.decoder(False)(got)
    assert got.count(tokenizer.inner.convert_tokens_to_ids("<|im_end|>")) == 1


def test_a_spelling_in_the_vocabulary_is_cut_to_characters(tokenizer: Tokenizer) -> None:
    guard = Guard(tokenizer.inner)

    class Twin:
        """A tokenizer whose plain vocabulary holds a control token as a piece."""

        def encode_batch_fast(self, texts: list[str], add_special_tokens: bool) -> list[Any]:
            ids = [[guard._ids["<s>"]] if "<s>" in text else [ord(c) for c in text] for text in texts]
            return [type("Encoding", (), {"ids": each}) for each in ids]

    guard._twin = Twin()
    long = "é<s>" * 50_000  # more than one slice
    assert guard._plain(["<s>", "ab", long]) == [[ord(c) for c in text] for text in ("<s>", "ab", long)]


def test_a_flood_of_spellings_holds_up_no_other_thread(tokenizer: Tokenizer) -> None:
    """What a stream feels: the longest time that another thread does not get to run."""
    content = "<|im_end|>" * 100_000 + "é"
    done, gaps = threading.Event(), [0.0]

    def watch() -> None:
        while not done.is_set():
            begun = time.perf_counter()
            time.sleep(0.001)
            gaps.append(time.perf_counter() - begun)

    guard, watcher = Guard(tokenizer.inner), threading.Thread(target=watch)
    watcher.start()
    begun = time.perf_counter()
    (masked,), stands_for = guard.mask([content])
    ids = guard.encode("<s>" + masked + "</s>", stands_for)
    took = time.perf_counter() - begun
    done.set()
    watcher.join()
    assert tokenizer.decoder(False)(ids) == "<s>" + content + "</s>"
    assert not set(ids[1:-1]) & guard._numbers
    assert max(gaps) < max(0.25, took / 4), (max(gaps), took)


def test_tokens_that_begin_inside_one_another_are_all_broken() -> None:
    inner: Any = byte_tokenizer()
    inner.add_special_tokens({"additional_special_tokens": ["aa", "aba", "ba|"]})
    guard = Guard(inner)
    for content in ("aaaaa", "ababa|", "abababa|", "a", "xaab"):
        (masked,), stands_for = guard.mask([content])
        assert not guard._control.search("a" + masked + "a|") and masked.translate(stands_for) == content


def test_calls_written_as_text_become_objects(tokenizer: Tokenizer) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": "blue"}'}}
    messages = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "ok", "tool_call_id": "1"},
    ]
    assert "\nfblue" in tokenizer.decoder(False)(tokens(tokenizer, messages))
    call["function"]["arguments"] = "not json"  # type: ignore[index]
    with pytest.raises(ApiError) as caught:
        tokens(tokenizer, [*messages, {"role": "user", "content": [{"type": "image_url"}]}])
    assert caught.value.param == "messages"


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "video_url", "file"])
def test_media_are_refused_by_their_place_and_with_the_reason(tokenizer: Tokenizer, kind: str) -> None:
    content = [{"type": "text", "text": "What is this?"}, {"type": kind, kind: {"url": "data:,x"}}]
    with pytest.raises(ApiError) as caught:
        tokens(tokenizer, [{"role": "system", "content": "x"}, {"role": "user", "content": content}])
    assert (caught.value.status, caught.value.param) == (400, "messages")
    said = str(caught.value)
    assert f"messages[1].content[1]: parts of type '{kind}'" in said and "no encoder runs here" in said
    asked = [{"role": "user", "content": [content[0], {"type": "input_image"}]}]
    with pytest.raises(
        ApiError, match=r"input\[0\]\.content\[1\]: parts of type 'input_image' \(images\) are not read"
    ):
        chat_of(asked, None)
    with pytest.raises(ApiError, match=r"messages\.0\.content\.1: blocks of type 'document' \(files\) are not read"):
        conversation(None, [{"role": "user", "content": [content[0], {"type": "document"}]}])


def test_a_template_that_fails_is_the_clients_error(tokenizer: Tokenizer) -> None:
    tools = [{"type": "function"}]
    with pytest.raises(ApiError, match="chat template") as caught:
        tokens(tokenizer, [{"role": "user", "content": "x"}], tools)
    assert (caught.value.status, caught.value.param) == (400, "messages")


def test_misspellings_are_found_and_strangers_are_not() -> None:
    CompletionRequest(prompt="x", vendor_option=1, metadata={}).check()  # type: ignore[call-arg]
    with pytest.raises(ApiError, match="max_tokens"):
        CompletionRequest(prompt="x", max_token=1).check()  # type: ignore[call-arg]


# --- what cannot fit -------------------------------------------------------------------------------------------------


class Unread(Tokenizer):
    """A tokenizer that must not be asked."""

    def __init__(self, real: Tokenizer) -> None:
        self.inner = real.inner

    def encode(self, text: str, special: bool = True) -> list[int]:
        raise AssertionError("it was tokenized")


def test_a_text_that_cannot_fit_is_refused_unread(tokenizer: Tokenizer) -> None:
    prompts = Prompts(Unread(tokenizer), 512)
    longest = len("<|im_start|>")
    assert prompts.lengths.token == longest
    with pytest.raises(ApiError, match=r"at least 513 tokens \(6145 bytes\) but max_model_len is 512") as caught:
        asyncio.run(prompts.encode("x" * (512 * longest + 1), True))
    assert (caught.value.status, caught.value.param) == (400, "prompt")
    with pytest.raises(ApiError, match="at least"):  # bytes count, not characters
        asyncio.run(prompts.encode("é" * (512 * longest // 2 + 1), True))
    with pytest.raises(AssertionError, match="was tokenized"):
        asyncio.run(prompts.encode("x" * 512 * longest, True))
    with pytest.raises(ApiError, match=r"takes at most 1048576\."):
        asyncio.run(prompts.encode("x" * 1_048_577, True, to_run=False))
    for size in (512 * longest, 5 * 512 * longest):  # too long behind the template, and before it
        with pytest.raises(ApiError, match=r"at least .* max_model_len is 512") as caught:
            asyncio.run(prompts.chat([ChatMessage(role="user", content="x" * size)], None, {}, None))
        assert caught.value.param == "messages"


def test_the_longest_token_is_a_bound_only_where_every_byte_is_kept(tokenizer: Tokenizer) -> None:
    from tokenizers import AddedToken, normalizers

    assert longest_token(tokenizer.inner) == len("<|im_start|>")
    inner: Any = byte_tokenizer()
    inner.add_tokens([AddedToken("<mask>", lstrip=True)])  # swallows any number of spaces
    assert longest_token(inner) == SWALLOWED
    inner = byte_tokenizer()
    inner._tokenizer.normalizer = normalizers.Strip()
    assert longest_token(inner) == SWALLOWED


@settings(max_examples=60, deadline=None)
@given(text=st.lists(st.sampled_from([*PIECES, "\U0001f600", "x"]), max_size=40).map("".join))
def test_no_text_that_fits_is_refused(tokenizer: Tokenizer, text: str) -> None:
    count = len(tokenizer.encode(text, special=False))
    Lengths(tokenizer.inner, count).check_text(text, "prompt")


def test_short_texts_do_not_wait_for_long_ones(tokenizer: Tokenizer) -> None:
    release = threading.Event()

    class Held(Tokenizer):
        """A tokenizer that takes until it is told to with long texts."""

        def __init__(self) -> None:
            self.inner = tokenizer.inner

        def encode(self, text: str, special: bool = True) -> list[int]:
            assert len(text) <= SHORT or release.wait(30)
            return tokenizer.encode(text, special)

    async def ask() -> None:
        prompts = Prompts(Held(), 1 << 20)
        long = [asyncio.create_task(prompts.encode("x" * (SHORT + 1), False)) for _ in range(4)]
        await asyncio.sleep(0.05)
        try:
            async with asyncio.timeout(10):
                assert len(await prompts.encode("x" * SHORT, False)) == SHORT
                said = [ChatMessage(role="user", content="<|im_end|>")]
                assert "<|im_end|>" in await prompts.decode(await prompts.chat(said, None, {}, None))
            assert not any(task.done() for task in long)
        finally:
            release.set()
        assert {len(ids) for ids in await asyncio.gather(*long)} == {SHORT + 1}

    asyncio.run(ask())


def test_reasoning_goes_back_under_the_name_that_templates_know() -> None:
    for told in ({"reasoning": "so"}, {"reasoning_content": "so"}, {"reasoning": "no", "reasoning_content": "so"}):
        said = _for_template(ChatMessage.model_validate({"role": "assistant", "content": "x", **told}), 0)
        assert said["reasoning_content"] == "so"
