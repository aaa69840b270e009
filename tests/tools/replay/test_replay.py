"""Replay: the compiled walk against brute force, figures by hand, the command from end to end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from augury.config.errors import ConfigError
from augury.index.suffix import SuffixCache
from augury.tools.replay.figures import best_of, summarise
from augury.tools.replay.replay import Replay, ReplayedConfig, expand, read_configs, read_grid
from augury.tools.replay.tokens import Script
from augury.tools.shared.profile import check_profile, read_profile, write_profile
from augury.tools.suffix.patterns import frequent_runs

Draft = tuple[list[int], list[int]]  # tokens, parents


# --- brute force ---------------------------------------------------------------------------------------------------


def slow_ngram(text: list[int], low: int, high: int, latest: bool, most: int) -> Draft:
    """Look at every place, longest n first."""
    for n in range(high, low - 1, -1):
        places = [i for i in range(len(text) - n) if text[i : i + n] == text[len(text) - n :] and n <= len(text)]
        if places:
            begin = (places[-1] if latest else places[0]) + n
            tokens = text[begin : begin + most]
            return tokens, list(range(-1, len(tokens) - 1))
    return [], []


def occurrences(texts: list[list[int]], what: list[int]) -> list[tuple[int, int]]:
    """(text, place) of a string, oldest first."""
    size = len(what)
    return [(t, i) for t, text in enumerate(texts) for i in range(len(text) - size + 1) if text[i : i + size] == what]


def slow_path(
    texts: list[list[int]], matched: list[int], depth: int, most: int, least: float
) -> tuple[list[int], float]:
    """Follow the most frequent token; of equally frequent ones, that whose last occurrence is the oldest."""
    said, prob, score = list(matched), 1.0, 0.0
    while len(said) - len(matched) < most and len(said) < depth:
        here = len(occurrences(texts, said))
        nexts = {text[i] for text in texts for i in range(len(text))}
        found = {token: occurrences(texts, [*said, token]) for token in nexts}
        ranked = sorted((-len(places), places[-1], token) for token, places in found.items() if places)
        if not ranked:
            break
        prob *= -ranked[0][0] / here
        if prob < least - 1e-9:
            break
        said.append(ranked[0][2])
        score += prob
    return said[len(matched) :], score


def slow_suffix(own: list[int], shared: list[list[int]], depth: int, factor: float, least: float, most: int) -> Draft:
    """The best score over the request's text and the responses; ties to the longer match, then to the request."""
    best, best_score = [], 0.0
    tail = own[-depth:]
    for texts in ([own], shared):
        for m in range(len(tail) - 1, 0, -1):
            if not occurrences(texts, tail[-m:]):
                continue
            tokens, score = slow_path(texts, tail[-m:], depth, min(most, int(m * factor + 1e-6)), least)
            if score > best_score + 1e-9:
                best, best_score = tokens, score
    return best, list(range(-1, len(best) - 1))


class Tally:
    """The counts of a replay, counted the plain way."""

    def __init__(self, most: int) -> None:
        self.lines: list[list[int]] = []
        self.curve = np.zeros((4, most + 1), np.int64)

    def step(self, draft: Draft, coming: list[int]) -> int:
        """Judge a draft by what came; gives how many tokens the step emitted."""
        tokens, parents = draft
        depths: list[int] = []
        for parent in parents:
            depths.append(1 if parent < 0 else depths[parent] + 1)
        node, accepted, offered = -1, 0, 0
        while accepted < len(coming):
            kids = [i for i, parent in enumerate(parents) if parent == node]
            offered += bool(kids)
            agreed = [i for i in kids if tokens[i] == coming[accepted]]
            if not agreed:
                break
            node, accepted = agreed[0], accepted + 1
        line = self.lines[-1]
        line[0] += 1
        if tokens:
            line[1:] = line[1] + 1, line[2] + len(tokens), line[3] + accepted
            for row, count in enumerate((max(depths), offered, accepted)):
                self.curve[row, :count] += 1
            self.curve[3, accepted] += 1
        return accepted + 1


def contender(**keys: Any) -> ReplayedConfig:
    ((config,), _) = expand([keys], {})
    return ReplayedConfig(config)


def agree(fast: ReplayedConfig, slow: Tally) -> None:
    assert fast.lines.tolist() == slow.lines
    assert fast.curve.tolist() == slow.curve.tolist()


TEXTS = st.lists(st.integers(0, 3), min_size=2, max_size=40)


@st.composite
def conversations(draw: st.DrawFn) -> list[Script]:
    """A few conversations over a tiny alphabet, with responses anywhere in them."""
    made = []
    for _ in range(draw(st.integers(1, 5))):
        text = draw(TEXTS)
        cuts = sorted(draw(st.sets(st.integers(0, len(text)), max_size=6)))
        spans = [(a, b) for a, b in zip(cuts[::2], cuts[1::2], strict=False) if b > a]
        made.append(Script(np.array(text, np.int64), spans, "", draw(st.sampled_from(["", "x"]))))
    return made


SLOW = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@SLOW
@given(conversations(), st.integers(1, 3), st.integers(0, 2), st.booleans(), st.integers(1, 5))
def test_ngram_walks_as_brute_force_does(made: list[Script], low: int, more: int, latest: bool, most: int) -> None:
    fast = contender(
        method="ngram",
        num_speculative_tokens=most,
        prompt_lookup_min=low,
        prompt_lookup_max=low + more,
        prompt_lookup_match="latest" if latest else "earliest",
    )
    slow = Tally(most)
    for script in made:
        fast.walk(script)
        text = script.text.tolist()
        for start, stop in script.spans:
            slow.lines.append([0, 0, 0, 0])
            known = start + 1
            while known < stop:
                known += slow.step(slow_ngram(text[:known], low, low + more, latest, most), text[known:stop])
    agree(fast, slow)


@SLOW
@given(
    conversations(),
    st.integers(2, 6),
    st.sampled_from([0.5, 1.0, 2.0]),
    st.sampled_from([0.0, 0.1, 0.5]),
    st.sampled_from([0, 1, 2, 100]),
)
def test_suffix_walks_as_brute_force_does(
    made: list[Script], depth: int, factor: float, least: float, kept: int
) -> None:
    fast = contender(
        method="suffix",
        suffix_decoding_max_tree_depth=depth,
        suffix_decoding_max_spec_factor=factor,
        suffix_decoding_min_token_prob=least,
        suffix_decoding_max_cached_requests=kept,
    )
    slow, past = Tally(depth), []
    for script in made:
        fast.walk(script)
        text = script.text.tolist()
        for start, stop in script.spans:
            slow.lines.append([0, 0, 0, 0])
            past = [*past, (script.tenant, text[start:stop])][-kept:] if kept else []
            earlier = [response for tenant, response in past[:-1] if tenant == script.tenant]
            known = start + 1
            while known < stop:
                shared = [*earlier, text[start:known]] if kept else []
                draft = slow_suffix(text[:known], shared, depth, factor, least, depth)
                known += slow.step(draft, text[known:stop])
    agree(fast, slow)


@pytest.mark.parametrize("tree", [None, {"max_nodes": 7, "top_k": 3}])
@pytest.mark.parametrize("kept", [0, 3, 1000])
def test_one_index_for_all_turns_drafts_as_one_for_each(tree: dict[str, int] | None, kept: int) -> None:
    """The walk grows one tree through a conversation; an engine starts every turn anew by the cache's own calls."""
    random = np.random.default_rng(5)
    keys: dict[str, Any] = {"method": "suffix", "suffix_decoding_max_cached_requests": kept}
    fast = contender(**keys, tree=tree) if tree else contender(**keys)
    most = tree["max_nodes"] if tree else 24
    cache, slow, name = SuffixCache(24, kept), Tally(most), 0
    for _ in range(12):
        text = random.choice(4, 400, p=[0.6, 0.2, 0.15, 0.05]).astype(np.int64)
        script = Script(text, [(50, 120), (120, 121), (200, 390)], "", "")
        fast.walk(script)
        for start, stop in script.spans:
            slow.lines.append([0, 0, 0, 0])
            name, known, done = name + 1, start + 1, start
            cache.start(str(name), text[:start])
            while known < stop:
                cache.append(str(name), text[done:known])
                done = known
                width = tree["top_k"] if tree else None
                found = cache.speculate(str(name), max_tokens=most, tree=tree is not None, width=width)
                known += slow.step((found.tokens, found.parents), text[known:stop].tolist())
            cache.append(str(name), text[done:stop])
            cache.stop(str(name))
    agree(fast, slow)


def test_an_index_that_must_grow_in_the_middle_of_a_response() -> None:
    text = np.random.default_rng(1).integers(0, 50, 30_000)
    text[15_000:] = text[:15_000]
    one, two = contender(method="suffix"), contender(method="suffix")
    one.walk(Script(text, [(10, 30_000)], "", ""))
    two.walker.stock.make_room(200_000, 10)  # type: ignore[attr-defined, union-attr]
    two.walk(Script(text, [(10, 30_000)], "", ""))
    assert one.lines.tolist() == two.lines.tolist() and one.curve.tolist() == two.curve.tolist()
    assert one.lines[0, 3] > 10_000


# --- figures -------------------------------------------------------------------------------------------------------


def walked(text: list[int], spans: list[tuple[int, int]], limit: int | None = None, **keys: Any) -> Replay:
    (configs, _) = expand([keys], {})
    running = Replay(configs, limit)
    running.feed(Script(np.array(text, np.int64), spans, "a", ""))
    return running


NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 2, "prompt_lookup_max": 2}


def test_by_hand() -> None:
    # known 1 2 3 4 5 | 1: nothing ends in (5, 1). Then (1, 2) -> 3 4 5, two agree, 9 comes instead.
    # (4, 9) and (9, 1) are new. (1, 2) -> 3 4 5, of which only 3 still comes; the response ends there.
    running = walked([1, 2, 3, 4, 5, 1, 2, 3, 4, 9, 1, 2, 3], [(5, 13)], **NGRAM)
    assert running.contenders[0].lines.tolist() == [[5, 2, 6, 3]]
    summary = summarise(running.contenders[0], running.log)
    total = summary.total
    assert (total.emitted, total.steps_saved, total.share_drafted) == (7, 1 - 5 / 7, 2 / 5)
    assert (total.acceptance_rate, total.acceptance_length, total.wasted_per_token) == (3 / 6, 1 + 3 / 2, 3 / 7)
    assert (summary.drafted_at, summary.accepted_at, summary.offered_at) == ([2, 2, 2], [2, 1, 0], [2, 1, 1])
    assert summary.marginal == [1.0, 0.5, 0.0] and summary.conditional == [1.0, 0.5, 0.0]
    assert summary.where_drafted == [1.0, 1.0, 0.0]
    assert summary.lengths == [0, 1, 1, 0]


def test_max_model_len_cuts_responses_and_drafts() -> None:
    text = [1, 2] * 20
    assert walked(text, [(10, 40)], **NGRAM).log.response_tokens == 30
    running = walked(text, [(10, 20), (30, 40)], 16, **NGRAM)
    log = running.log
    assert (log.response_tokens, log.cut, log.prompt_tokens, len(log.turns)) == (6, 2, 10, 1)
    # 11 known: 3 drafted, 4 emitted. 15 known: room for one more, which is the last.
    assert running.contenders[0].lines.tolist() == [[2, 2, 4, 4]]


def test_groups_add_up() -> None:
    running = Replay(expand(read_configs([], []), {})[0])
    random = np.random.default_rng(0)
    for i in range(30):
        text = random.integers(0, 6, 200)
        running.feed(Script(text, [(20, 60), (100, 180)][: 1 + i % 2], f"class {i % 3}", ""))
    for one in running.contenders:
        summary = summarise(one, running.log)
        for parts in (summary.by_class.values(), summary.by_turn.values(), summary.course):
            for name in ("responses", "emitted", "steps", "drafts", "drafted", "accepted"):
                assert sum(getattr(part, name) for part in parts) == getattr(summary.total, name)
        assert list(summary.by_class) == ["class 0", "class 1", "class 2"] and list(summary.by_turn) == [1, 2]
        assert summary.first_tenth and summary.first_tenth.responses == 4
        assert sum(summary.lengths) == summary.total.drafts
        assert summary.times.p50 > 0 and summary.times.samples > 0 and summary.bytes > 0
    assert best_of([summarise(one, running.log) for one in running.contenders]) in (0, 1)


def test_frequent_runs() -> None:
    texts = [np.array([1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6]), np.array([9, 1, 2, 3, 4]), np.array([7])]
    assert frequent_runs(texts, 4, 3) == [([1, 2, 3, 4], 3)]  # (2, 3, 4, 5) is the same, shifted
    assert frequent_runs([], 4, 3) == []


# --- grids ---------------------------------------------------------------------------------------------------------


def test_grids() -> None:
    grid = read_grid(["num_speculative_tokens=4,8", "prompt_lookup_max=2,3", "suffix_decoding_max_spec_factor=1.5"])
    configs, refused = expand(read_configs(["ngram", "suffix"], []), grid)
    found = [
        (c.method, c.num_speculative_tokens, c.prompt_lookup_max, c.suffix_decoding_max_spec_factor) for c in configs
    ]
    assert found == [
        ("ngram", 4, 2, 1.0),
        ("ngram", 4, 3, 1.0),
        ("ngram", 8, 2, 1.0),
        ("ngram", 8, 3, 1.0),
        ("suffix", 4, None, 1.5),
        ("suffix", 8, None, 1.5),
    ]
    assert refused == []
    configs, refused = expand(read_configs(["ngram"], []), {"prompt_lookup_max": [1, 2]})
    assert len(configs) == 1 and "prompt_lookup_min=2" in refused[0]


@pytest.mark.parametrize(
    ("methods", "written", "grid", "message"),
    [
        ([], [], ["prompt_lookup_max"], "write a key and its values"),
        ([], [], ["a=1", "a=2"], "given twice"),
        (["ngram"], [], ["suffix_decoding_max_spec_factor=1"], "none of the methods"),
        (["ngram"], [], ["prompt_lookup_max=1"], "no combination"),
        (["eagle"], [], [], "needs a model"),
        (["nonsense"], [], [], "no such method"),
        ([], ['{"method": "eagle3", "num_speculative_tokens": 3, "model": "x"}'], [], "needs a model"),
        ([], ['{"method": "ngram"'], [], "not JSON"),
        ([], ["[1"], [], "not JSON"),
        ([], ["[3]"], [], "must be a JSON object"),
        ([], ['{"method": "suffix", "rejection_sample_method": "typical"}'], [], "changes the text"),
    ],
)
def test_refused(methods: list[str], written: list[str], grid: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        expand(read_configs(methods, written), read_grid(grid))


# --- profile -------------------------------------------------------------------------------------------------------


def test_profiles_are_checked(tmp_path: Path) -> None:
    good = {
        "method": "ngram",
        "num_speculative_tokens": 2,
        "conditional_accept_rates": [0.5, 0.5],
        "marginal_accept_rates": [0.5, 0.25],
        "mean_accept_length": 1.75,
        "mean_accept_length_per_request": 1.7,
        "acceptance_length_histogram": {"1": 2},
        "measurement_conditions": {},
    }
    path = tmp_path / "speculation_profile.json"
    write_profile(good, path)
    assert read_profile(path) == good and list(tmp_path.iterdir()) == [path]
    for change, message in [
        ({"mean_accept_length": 2.0}, "are they conditional"),
        ({"conditional_accept_rates": [0.5, 0.25]}, "the conditional rates up to 1"),
        ({"marginal_accept_rates": [0.5]}, "has 1 numbers for 2"),
        ({"marginal_accept_rates": [0.5, 1.5]}, "between 0 and 1"),
        ({"method": None}, "method is missing"),
    ]:
        with pytest.raises(ConfigError, match=message):
            check_profile({**good, **change}, "it")
    path.write_text("{")
    with pytest.raises(ConfigError, match="not JSON"):
        read_profile(path)
