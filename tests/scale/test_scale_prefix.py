"""What a request is routed by: equal for turns of one session, apart for tenants, salts and adapters."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from augury.scale.asked import read_asked
from augury.scale.prefix import BLOCK, MOST, prefix_of

SYSTEM = {"role": "system", "content": "Be brief. " * 100}
ASKED = [SYSTEM, {"role": "user", "content": "Which flights are there?"}]
LATER = [*ASKED, {"role": "assistant", "content": "None. " * 100}, {"role": "user", "content": "And tomorrow?"}]


def of(tenant: str = "", **body: Any) -> Any:
    return prefix_of(body, tenant)


@pytest.mark.parametrize("field", ["messages", "input"])
def test_turns_of_a_conversation_are_one_session(field: str) -> None:
    first, later = of(**{field: ASKED}), of(**{field: LATER}, temperature=0.5)
    assert first.session == later.session
    assert later.blocks[: len(first.blocks)] == first.blocks and len(later.blocks) > len(first.blocks)


def test_conversations_with_one_system_prompt_share_its_blocks_and_are_apart() -> None:
    first, other = of(messages=ASKED), of(messages=[SYSTEM, {"role": "user", "content": "Cancel my booking."}])
    shared = len(json.dumps(SYSTEM)) // BLOCK
    assert first.session != other.session and first.blocks[:shared] == other.blocks[:shared]


@pytest.mark.parametrize(
    "change",
    [
        {"model": "adapter"},
        {"cache_salt": "mine"},
        {"tools": [{"type": "function"}]},
        {"system": "x"},
        {"tenant": "another"},
    ],
)
def test_what_may_not_share_a_cache_shares_no_block(change: dict[str, Any]) -> None:
    plain, changed = of(messages=LATER), of(**{"messages": LATER, **change})
    assert plain.session != changed.session and not set(plain.blocks) & set(changed.blocks)


def test_a_client_may_name_its_session() -> None:
    one = of(prompt="a" * 3000, prompt_cache_key="k")
    assert one.session == of(prompt="b" * 3000, prompt_cache_key="k").session
    assert one.session != of(prompt="a" * 3000, prompt_cache_key="other").session
    assert one.blocks == of(prompt="a" * 3000).blocks


def test_prompts_without_turns() -> None:
    text = "x" * (3 * BLOCK + 1)
    assert len(of(prompt=text).blocks) == 3
    assert of(prompt=text).blocks == of(prompt=[text, "another"]).blocks
    ids = list(range(2000))
    assert of(prompt=ids).blocks == of(prompt=[ids]).blocks != ()
    assert len(of(prompt="y" * (BLOCK * MOST * 2)).blocks) == MOST


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"3", b"{}", b'{"messages": []}', b'{"prompt": 7}', b"[" * 100000])
def test_what_cannot_be_read_is_left_to_a_replica(body: bytes) -> None:
    assert asyncio.run(read_asked(body, "")) == (None, None)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
    )
)
def test_no_body_raises(value: Any) -> None:
    for name in ("messages", "prompt", "input"):
        asyncio.run(read_asked(json.dumps({name: value}).encode(), ""))
