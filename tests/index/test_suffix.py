"""The suffix index equals counting by hand, whatever is started, appended, stopped and evicted in whatever order."""

from __future__ import annotations

import threading
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from suffix_oracle import SlowCache, occurrences

from augury.index.suffix import SuffixCache
from augury.index.suffix_layout import BLOCKS_USED, NODES_USED, TABLE_USED

REPEATABLE = settings(deadline=None, derandomize=True, max_examples=150)
TENANTS = ("", "b")


@st.composite
def histories(draw: st.DrawFn) -> tuple[int, int, int, list[tuple[object, ...]]]:
    """(depth, requests kept, alphabet, operations); an alphabet above 4 makes nodes ask the hash table."""
    alphabet = draw(st.sampled_from([1, 2, 3, 9]))
    tokens = st.lists(st.integers(0, alphabet - 1), max_size=draw(st.sampled_from([4, 40])))
    pick = st.integers(0, 9)
    operation = st.one_of(
        st.tuples(st.just("start"), pick, tokens, st.sampled_from(TENANTS)),
        st.tuples(st.just("append"), pick, tokens),
        st.tuples(st.just("append"), pick, tokens),
        st.tuples(st.just("stop"), pick),
        st.tuples(st.just("evict"), pick),
    )
    operations = draw(st.lists(operation, min_size=1, max_size=14))
    return draw(st.sampled_from([1, 2, 3, 5, 8])), draw(st.sampled_from([-1, 0, 1, 2, 3])), alphabet, operations


def perform(cache: SuffixCache, slow: SlowCache, number: int, operation: tuple[object, ...]) -> None:
    """One operation on both, on whatever request the number picks; nothing if there is none."""
    kind, pick, *rest = operation
    assert isinstance(pick, int)
    if kind == "start":
        idle = [name for name in slow.cached if name not in slow.active]
        name = idle[0] if idle and pick == 0 else f"r{number}"
        cache.start(name, *rest)  # type: ignore[arg-type]
        slow.start(name, *rest)  # type: ignore[arg-type]
        return
    names = list(slow.cached if kind == "evict" else slow.active)
    if names:
        for one in (cache, slow):
            getattr(one, str(kind))(names[pick % len(names)], *rest)


def check_counts(cache: SuffixCache, slow: SlowCache, alphabet: int) -> None:
    assert cache.cached == list(slow.cached)
    strings = [
        list(s) for n in range(1, slow.depth + 1) if alphabet**n < 100 for s in product(range(alphabet), repeat=n)
    ]
    for tenant in TENANTS:
        texts = slow.shared(tenant)
        assert [cache.count(s, tenant) for s in strings] == [len(occurrences(texts, s)) for s in strings]
        for text in texts.values():  # and the long ones that do occur
            for i in range(0, len(text), 3):
                window = text[i : i + slow.depth]
                assert cache.count(window, tenant) == len(occurrences(texts, window))
    for name, (text, _) in slow.active.items():
        assert [cache.count(s, request=name) for s in strings] == [len(occurrences({0: text}, s)) for s in strings]


RULES = st.tuples(
    st.integers(0, 7), st.sampled_from([0.5, 1.0, 2.0, 4.0]), st.sampled_from([0.0, 1.0, -0.5]),
    st.sampled_from([0.0, 0.1, 0.3, 1.0]), st.sampled_from([1, 1, 2, 9]),
)  # fmt: skip


def check_drafts(
    cache: SuffixCache, slow: SlowCache, rule: tuple[int, float, float, float, int], context: list[int]
) -> None:
    most, factor, offset, least, width = rule
    for name in slow.active:
        for given_context in (None, context):
            found = cache.speculate(
                name, given_context, max_tokens=most, factor=factor, offset=offset, min_prob=least,
                tree=width > 1, width=width,
            )  # fmt: skip
            wanted = slow.speculate(name, given_context, *rule)
            assert (found.tokens, found.parents, found.match_len) == (wanted.tokens, wanted.parents, wanted.match_len)
            assert found.probs == pytest.approx(wanted.probs)
            assert found.score == pytest.approx(wanted.score)


@REPEATABLE
@given(history=histories(), rule=RULES, context=st.lists(st.integers(0, 3), max_size=9))
def test_counts_and_drafts_are_those_of_the_slow_cache(
    history: tuple[int, int, int, list[tuple[object, ...]]],
    rule: tuple[int, float, float, float, int],
    context: list[int],
) -> None:
    depth, kept, alphabet, operations = history
    cache, slow = SuffixCache(depth, kept), SlowCache(depth, kept)
    for number, operation in enumerate(operations):
        perform(cache, slow, number, operation)
        check_counts(cache, slow, alphabet)
        check_drafts(cache, slow, rule, context)
    for name in cache.active:
        cache.stop(name)
    for name in cache.cached:
        cache.evict(name)
    counters = cache._stock.arena.arrays.counters
    assert counters[[NODES_USED, BLOCKS_USED, TABLE_USED]].tolist() == [0, 0, 0]  # nothing is ever lost


@pytest.mark.parametrize("least", [0.0, 0.01, 0.1])
@pytest.mark.parametrize("width", [1, 4])
def test_nodes_with_hundreds_of_kids(least: float, width: int) -> None:
    """What follows token 0 drifts, so that kids rise to and fall from the top by counting and by eviction alone."""
    random = np.random.default_rng(5)
    cache, slow = SuffixCache(4, 30), SlowCache(4, 30)
    for i in range(90):
        favourite = 1 + (i // 25) % 4 if i % 40 < 20 else 9
        followers = np.where(random.random(40) < 0.3, favourite, random.integers(1, 400, 40))
        text = np.stack([np.zeros(40, np.int64), followers], 1).flatten().tolist()
        for one in (cache, slow):
            one.start(f"r{i}", [], "")
            one.append(f"r{i}", text)
        rule = (4, 2.0, 0.0, least, width)
        if i % 6 == 0:
            check_drafts(cache, slow, rule, [5, 0])
        for one in (cache, slow):
            one.stop(f"r{i}")
    for name in list(slow.cached)[:26]:  # totals halve and halve again
        cache.evict(name)
        slow.evict(name)
        cache.start("probe", [7, 0])
        found = cache.speculate("probe", max_tokens=4, factor=2.0, min_prob=least, tree=width > 1, width=width)
        slow.active["probe"] = [7, 0], ""
        wanted = slow.speculate("probe", None, 4, 2.0, 0.0, least, width)
        assert (found.tokens, found.parents) == (wanted.tokens, wanted.parents)
        cache.stop("probe")
        cache.evict("probe")


def guesses(cache: SuffixCache, context: list[int]) -> list[int]:
    cache.start("probe", [])
    tokens = cache.speculate("probe", context, max_tokens=1).tokens
    cache.stop("probe")
    cache.evict("probe")
    return tokens


def test_a_kid_that_lost_its_rank_by_eviction_makes_way() -> None:
    cache = SuffixCache()
    cache.add("old", [0, 1] * 29)  # few enough that the count does not halve, which would put all in order anyway
    cache.add("new", [0, 1] * 2 + [0, 2] * 30)
    assert guesses(cache, [7, 0]) == [1]
    cache.evict("old")
    assert guesses(cache, [7, 0]) == [2]  # 1 is now below min_prob and must not hide what stands behind it


def test_a_kid_that_gained_rank_untouched_is_found() -> None:
    cache = SuffixCache()
    cache.add("old", [0, 9] * 2000)
    cache.add("new", [0, 3] * 2 + [0, 2] * 30)
    assert guesses(cache, [7, 0]) == [9]
    cache.evict("old")
    assert guesses(cache, [7, 0]) == [2]


def test_evicting_the_newest_leaves_the_others_readable() -> None:
    """Nodes are read at their most recent occurrence; when that goes first, they must move to another."""
    cache = SuffixCache()
    for name in ("a", "b", "c"):
        cache.add(name, [1, 2, 3, 4, 5, 6])
    cache.evict("c")
    cache.add("d", [9] * 6)  # written where c stood
    assert [cache.count([1, 2, 3]), cache.count([9, 9]), cache.count([4, 5, 6])] == [2, 5, 2]
    assert guesses(cache, [7, 1, 2]) == [3]


def test_the_live_ending_counts_itself() -> None:
    cache = SuffixCache()
    cache.start("a", [1, 2, 3, 4, 1, 2])
    draft = cache.speculate("a", factor=4.0)
    assert draft.tokens == [3, 4, 1, 2]
    assert draft.probs == [0.5] * 4  # "1 2" stands twice and goes on once
    assert (draft.score, draft.match_len, draft.parents) == (2.0, 2, [-1, 0, 1, 2])


def test_longer_matches_and_the_own_tree_win_ties() -> None:
    cache = SuffixCache()
    cache.add("old", [5, 6, 9, 7, 8])
    cache.start("a", [5, 6, 1, 2, 5, 6])
    assert cache.speculate("a", max_tokens=1).tokens == [9]  # sure in the shared tree, 1/2 in the own
    cache.add("older", [5, 6, 3, 3, 3])
    assert cache.speculate("a", max_tokens=1).tokens == [1]  # 1/2 in both
    assert cache.speculate("a", max_tokens=1).match_len == 2  # "6" alone promises as much as "5 6"


@pytest.mark.parametrize(
    ("factor", "offset", "most", "length"),
    [(1, 0, 9, 2), (2, 0, 9, 4), (1, 1, 9, 3), (4, 0, 3, 3), (0, 0, 9, 0), (0.5, 0, 9, 1)],
)
def test_budget_grows_with_the_match(factor: float, offset: float, most: int, length: int) -> None:
    cache = SuffixCache()
    cache.add("old", [1, 2, 3, 4, 5, 6, 7, 8, 9])
    cache.start("a", [1, 2])
    cache.append("a", [])
    draft = cache.speculate("a", [0, 1, 2], factor=factor, offset=offset, max_tokens=most)
    assert len(draft.tokens) == length


def test_oldest_leave_first_and_the_newest_never() -> None:
    cache = SuffixCache(max_requests=2)
    for name, token in (("a", 1), ("b", 2), ("c", 3)):
        cache.start(name, [])
        cache.append(name, [token] * 3)
    assert cache.cached == ["b", "c"]
    assert [cache.count([t]) for t in (1, 2, 3)] == [0, 3, 3]
    cache.append("a", [1])  # evicted while it runs: its own tree goes on, the shared one does not hear of it
    assert cache.count([1]) == 0
    assert cache.count([1], request="a") == 4


def test_no_tree_without_cached_requests() -> None:
    cache = SuffixCache(max_requests=0)
    cache.start("a", [1, 2])
    cache.append("a", [1, 2])
    cache.stop("a")
    assert cache.cached == []
    cache.start("b", [])
    assert cache.speculate("b", [0, 1]).tokens == []


def test_patterns_do_not_cross_tenants() -> None:
    cache = SuffixCache()
    cache.add("secret", [1, 2, 3, 4], tenant="one")
    for tenant, tokens in (("one", [3, 4]), ("two", []), ("", [])):
        cache.start(f"r{tenant}", [0, 1, 2], tenant=tenant)
        assert cache.speculate(f"r{tenant}").tokens == tokens


def test_memory_cap_holds_and_drops_the_oldest() -> None:
    cap = 300_000
    cache, random = SuffixCache(max_bytes=cap), np.random.default_rng(1)
    texts = {f"r{i}": random.integers(0, 50, 200) for i in range(60)}
    for name, text in texts.items():
        assert cache.add(name, text)
        assert cache.bytes <= cap
    kept = cache.cached
    assert 1 < len(kept) < 60
    assert kept == list(texts)[-len(kept) :]
    for token in range(50):
        assert cache.count([token]) == sum(int((texts[name] == token).sum()) for name in kept)
    cache.start("long", random.integers(0, 50, 30_000))  # more than the cap can hold: it runs, without drafts
    assert cache.bytes <= cap
    assert cache.refused == 1
    assert cache.speculate("long").tokens == []
    cache.append("long", [1, 2])
    cache.stop("long")
    assert cache.add("again", [1, 2, 3])


def test_eight_threads_stay_correct() -> None:
    cache, problems = SuffixCache(max_depth=8, max_requests=40), []

    def hammer(worker: int) -> None:
        try:
            random = np.random.default_rng(worker)
            tenant = f"t{worker % 4}"
            for i in range(30):
                name, text = f"{worker}-{i}", random.integers(0, 4, 60)
                cache.start(name, text[:20], tenant)
                for at in range(20, 60, 5):
                    cache.append(name, text[at : at + 5])
                    cache.speculate(name, tree=bool(i % 2))
                    window = text[at : at + 5].tolist()
                    wanted = len(occurrences({0: text[: at + 5].tolist()}, window))
                    if cache.count(window, request=name) != wanted:
                        problems.append(name)
                cache.stop(name)
        except Exception as error:
            problems.append(error)

    threads = [threading.Thread(target=hammer, args=(w,)) for w in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    kept = cache.responses()
    assert len(kept) == 40
    for tenant in {tenant for tenant, _, _ in kept}:
        texts = {i: tokens.tolist() for i, (owner, _, tokens) in enumerate(kept) if owner == tenant}
        for string in product(range(4), repeat=3):
            assert cache.count(list(string), tenant) == len(occurrences(texts, list(string)))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda c: SuffixCache(max_depth=-1), "max_depth must be"),
        (lambda c: SuffixCache(max_requests=-2), "max_requests must be"),
        (lambda c: SuffixCache(max_bytes=0), "max_bytes must be"),
        (lambda c: c.append("a", [1, 2**31]), "token id 2147483648 at index 1 is out of range"),
        (lambda c: c.append("a", [2**70]), "integers"),
        (lambda c: c.append("a", [-1]), "token id -1"),
        (lambda c: c.append("a", [0.5]), "integers"),
        (lambda c: c.append("a", [[1]]), "flat"),
        (lambda c: c.append("b", [1]), "'b' is not active"),
        (lambda c: c.start("a", [1]), "'a' is already active"),
        (lambda c: c.stop("b"), "'b' is not active"),
        (lambda c: c.evict("b"), "'b' is not in the cache"),
        (lambda c: c.speculate("a", min_prob=1.5), "min_prob must be"),
        (lambda c: c.speculate("a", factor=float("nan")), "factor"),
        (lambda c: c.speculate("a", tree=True, width=0), "width must be"),
        (lambda c: c.count([]), "strings of 1 to 24 tokens"),
    ],
)
def test_bad_input_says_what_is_wrong_and_loses_nothing(call: object, words: str) -> None:
    cache = SuffixCache()
    cache.start("a", [7, 8, 9, 7])
    cache.append("a", [8])
    with pytest.raises(ValueError, match=words):
        call(cache)  # type: ignore[operator]
    assert cache.speculate("a").tokens == [9, 7]
    assert cache.count([7, 8], request="a") == 2


def test_an_empty_prompt_is_a_prompt() -> None:
    cache = SuffixCache()
    cache.start("a", [])
    assert cache.speculate("a").tokens == []
    cache.append("a", [1, 2, 1])
    assert cache.speculate("a").tokens == [2]
