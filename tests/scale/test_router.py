"""The router: sessions stay, loads are bounded, scaling moves few; from definitions and random traffic."""

from __future__ import annotations

import random
from collections import Counter
from hashlib import blake2b

import pytest
from hypothesis import given
from hypothesis import strategies as st

from augury.scale.prefix import Prefix
from augury.scale.router import NoReplicas, Router


def digest(text: str) -> bytes:
    return blake2b(text.encode(), digest_size=16).digest()


def prefix(session: str, blocks: int = 0, common: int = 0) -> Prefix:
    """A session's prompt of so many blocks, of which the first ones are everybody's."""
    names = [f"common {n}" if n < common else f"{session} {n}" for n in range(blocks)]
    return Prefix(digest(session), tuple(map(digest, names)))


def idle(count: int) -> dict[str, int]:
    return dict.fromkeys((f"replica {n}" for n in range(count)), 0)


def test_nobody_to_answer() -> None:
    with pytest.raises(NoReplicas):
        Router().choose(prefix("a"), {})


def test_a_session_stays_where_it_was_and_grows_there() -> None:
    router, loads = Router(), idle(8)
    first = router.choose(prefix("a", 3), loads)
    again = [router.choose(prefix("a", blocks), loads) for blocks in (5, 9)]
    assert first.why == "home" and first.blocks == 0
    assert [(choice.replica, choice.why, choice.blocks) for choice in again] == [
        (first.replica, "held", 3),
        (first.replica, "held", 5),
    ]


def test_routers_that_know_nothing_of_each_other_agree() -> None:
    loads = idle(16)
    for n in range(200):
        one, other = Router(), Router()
        assert one.choose(prefix(f"s{n}"), loads) == other.choose(prefix(f"s{n}"), dict(reversed(loads.items())))


def test_rendezvous_spreads_evenly_and_a_new_replica_takes_only_its_share() -> None:
    router, before, after = Router(), idle(10), idle(11)
    sessions = [digest(f"s{n}") for n in range(11000)]
    homes = [router.home(session, before) for session in sessions]
    moved = [router.home(session, after) for session in sessions]
    counts = Counter(homes)
    assert all(abs(counts[name] - 1100) < 5 * 1100**0.5 for name in before)
    assert all(new in (old, "replica 10") for old, new in zip(homes, moved, strict=True))
    share = sum(old != new for old, new in zip(homes, moved, strict=True)) / len(sessions)
    assert 0.07 < share < 0.11  # one in eleven


def test_remembered_sessions_stay_when_a_replica_comes() -> None:
    router, sessions = Router(), [prefix(f"s{n}", 2) for n in range(300)]
    homes = [router.choose(one, idle(4)).replica for one in sessions]
    assert [router.choose(one, idle(5)).replica for one in sessions] == homes


def test_when_a_replica_goes_only_its_sessions_move() -> None:
    router, sessions = Router(), [prefix(f"s{n}", 2) for n in range(300)]
    homes = [router.choose(one, idle(4)).replica for one in sessions]
    router.forget("replica 3")
    left = {name: 0 for name in idle(4) if name != "replica 3"}
    again = [router.choose(one, left) for one in sessions]
    assert all(
        (choice.replica == home and choice.why == "held") if home in left else (choice.replica in left)
        for home, choice in zip(homes, again, strict=True)
    )
    assert all(choice.blocks == 0 for home, choice in zip(homes, again, strict=True) if home not in left)


@given(
    loads=st.lists(st.integers(0, 40), min_size=1, max_size=12),
    sessions=st.lists(st.integers(0, 5), min_size=1, max_size=20),
)
def test_no_choice_breaks_the_bound(loads: list[int], sessions: list[int]) -> None:
    router = Router()
    now = {f"replica {n}": load for n, load in enumerate(loads)}
    for session in sessions:
        bound = router.bound(now)
        chosen = router.choose(prefix(f"s{session}", 4, 2), now).replica
        assert now[chosen] < bound
        now[chosen] += 1


def test_a_session_moves_when_its_replica_drowns_and_stays_there() -> None:
    router, loads = Router(), idle(4)
    home = router.choose(prefix("a", 4), loads).replica
    loads[home] = 20
    moved = router.choose(prefix("a", 6), loads)
    assert moved.replica != home and moved.why == "moved"
    loads[home] = 0
    back = router.choose(prefix("a", 7), loads)
    assert (back.replica, back.why, back.blocks) == (moved.replica, "held", 6)  # it holds more than the home does


def test_new_sessions_even_out() -> None:
    router, loads = Router(), idle(2)
    for n in range(64):
        loads[router.choose(prefix(f"s{n}", 8, 8), loads).replica] += 1
    assert abs(loads["replica 0"] - loads["replica 1"]) <= 2


def test_of_two_the_one_that_holds_the_beginning_is_chosen() -> None:
    for n in range(40):
        router = Router()
        holder = router.choose(prefix(f"warm {n}", 6, 6), idle(2)).replica
        chosen = router.choose(prefix(f"new {n}", 8, 6), idle(2))
        assert (chosen.replica, chosen.blocks) == (holder, 6)


def test_without_a_prefix_the_least_busy_answers() -> None:
    assert Router().choose(None, {"a": 2, "b": 1, "c": 1}) == ("b", "spread", 0)


def test_memory_is_bounded_and_forgets_the_ends_of_prompts_first() -> None:
    router = Router(remembered=50)
    first = router.choose(prefix("a", 30), idle(2))
    for n in range(4):
        router.choose(prefix(f"b{n}", 8), idle(2))
    assert len(router._held) == 50
    again = router.choose(prefix("a", 30), {first.replica: 0})
    assert again.why == "held" and again.blocks == 50 - 4 * 8  # what others left of it, from its beginning
    for n in range(50):
        router.choose(prefix(f"c{n}"), idle(2))
    assert len(router._sessions) == 50
    assert router.choose(prefix("a", 30), idle(2)).why == "home"


@given(seed=st.integers(0, 1 << 30))
def test_depths_are_those_of_a_plain_record(seed: int) -> None:
    """Against the definition: how many first blocks of a prompt some earlier prompt put on the chosen replica."""
    chance, router = random.Random(seed), Router()
    held: dict[str, set[bytes]] = {name: set() for name in idle(3)}
    for _ in range(30):
        asked = prefix(f"s{chance.randrange(4)}", chance.randrange(6), chance.randrange(3))
        loads = {name: chance.randrange(5) for name in held}
        choice = router.choose(asked, loads)
        wanted = next(
            (n for n, block in enumerate(asked.blocks) if block not in held[choice.replica]), len(asked.blocks)
        )
        assert choice.blocks == wanted
        held[choice.replica].update(asked.blocks)
