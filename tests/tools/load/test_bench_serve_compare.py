"""`augury bench serve`: comparisons with their intervals, and data sets."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benching import STEADY, bench, fake, script_file

from augury.config.errors import ConfigError
from augury.tools.load.compare import compare, verdict
from augury.tools.load.dataset import fitted, load


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with fake() as url:
        yield url


def made_up(speeds: Any, rounds: list[int], seed: int, name: str = "x") -> dict[str, Any]:
    """A result whose requests have these speeds."""
    dice = np.random.default_rng(seed)
    tokens = dice.integers(40, 80, len(rounds))
    return {
        "max_concurrency": 8, "output_throughput": float(np.mean(speeds)), "dataset_sha256": name,
        "prompts": list(range(len(rounds))), "rounds": rounds, "output_lens": tokens.tolist(),
        "ttfts": [0.05] * len(rounds), "latencies": (tokens / speeds).tolist(),
    }  # fmt: skip


def pair(true: float, seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Two servers, of which one is so much faster; rounds are disturbed, on each side by itself."""
    dice = np.random.default_rng(seed)
    rounds = [number % 6 for number in range(96)]
    sides = []
    for factor in (true, 1.0):
        disturbed = np.exp(dice.normal(0, 0.04, 6))[rounds]
        sides.append(made_up(100 * factor * disturbed * np.exp(dice.normal(0, 0.1, 96)), rounds, 1))
    return sides[0], sides[1]


def test_intervals_hold_what_they_promise() -> None:
    """At 95 per cent, a true ratio of 1 is called a difference now and then, 1.3 nearly always."""
    alike = [compare([a], [b])[0].speed for a, b in (pair(1.0, seed) for seed in range(40))]
    wrong = sum(ratio.clear for ratio in alike)
    assert wrong <= 6  # 2 are expected; more than 6 has a chance of 1 in 300
    faster = [compare([a], [b])[0].speed for a, b in (pair(1.3, seed) for seed in range(12))]
    assert sum(ratio.clear for ratio in faster) >= 11
    assert sum(ratio.low is not None and ratio.low <= 1.3 <= (ratio.high or 0) for ratio in faster) >= 9


def test_the_verdict_is_one_line() -> None:
    results = []
    for streams, true in ((1, 1.5), (8, 1.4), (64, 1.0)):
        new, old = pair(true, 3)
        results.append((new | {"max_concurrency": streams}, old | {"max_concurrency": streams}))
    found = compare([new for new, _ in results], [old for _, old in results])
    said = verdict(found)
    assert (
        said.count("x (") == 2 and said.endswith("no difference beyond noise at 64 streams") and " at 1 stream;" in said
    )
    few = compare([made_up(np.full(3, 120.0), [0] * 3, 1)], [made_up(np.full(3, 100.0), [0] * 3, 1)])
    assert verdict(few).endswith("x at 8 streams (too few requests for an interval)")
    assert "nothing to compare" in verdict(compare(results[0][:1], [results[1][1]]))


def test_vllms_own_results_can_be_the_baseline(server: str, tmp_path: Path) -> None:
    """One object without the lists of single requests: ratios, and no interval."""
    old = {"max_concurrency": 2, "output_throughput": 10.0, "median_ttft_ms": 500.0, "median_tpot_ms": 100.0}
    (tmp_path / "vllm.json").write_text(json.dumps(old))
    done = bench(server, "--dataset", script_file(tmp_path, STEADY), "--concurrency", "2", "--num-prompts", "4",
                 "--compare", str(tmp_path / "vllm.json"), "--plot", str(tmp_path / "p.png"), "--json")  # fmt: skip
    (one,) = json.loads(done.stdout)["comparison"]
    assert one["tpot_ratio"]["value"] > 5 and one["tpot_ratio"]["low"] is None and not one["clear"]
    assert (tmp_path / "p.png").read_bytes()[:4] == b"\x89PNG"


def test_two_servers_take_turns(server: str, tmp_path: Path) -> None:
    with fake(slower=2.0) as slow:
        file = script_file(tmp_path, {"ttft": 0.02, "gap": 0.01, "chunks": 8})
        words = ("--concurrency", "2", "--num-prompts", "24", "--save", str(tmp_path / "both.json"), "--json")
        done = bench(server, "--baseline-url", slow, "--dataset", file, *words)
        assert done.exit_code == 0, done.output
        said = json.loads(done.stdout)
        (one,) = said["comparison"]
        assert one["paired"] and one["clear"] and 1.5 < one["output_speed_ratio"]["value"] < 2.3
        assert " at 2 streams" in said["verdict"]
        both = json.loads((tmp_path / "both.json").read_text())
        new, old = both["results"][0], both["baseline_results"][0]
        assert sorted(set(new["rounds"])) == list(range(6)) and new["completed"] == old["completed"] == 24
        turns = sorted(
            {(side, part): min(s for s, r in zip(result["start_times"], result["rounds"], strict=True) if r == part)
             for side, result in (("new", new), ("old", old)) for part in range(6)}.items(), key=lambda item: item[1],
        )  # fmt: skip
        assert [side for (side, _), _ in turns] == ["new", "old", "old", "new"] * 3


CHAT = [{"role": "user", "content": "hi"}]
SHARE_GPT = [{"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "ho"}]}]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.jsonl", '"one"\n"two"\n', [{"prompt": "one"}, {"prompt": "two"}]),
        ("a.txt", "one\n\ntwo\n", [{"prompt": "one"}, {"prompt": "two"}]),
        ("a.jsonl", json.dumps(CHAT), [{"messages": CHAT}]),
        ("a.jsonl", json.dumps({"messages": CHAT, "top_p": 0.5}), [{"messages": CHAT, "top_p": 0.5}]),
        ("a.jsonl", json.dumps({"prompt": "x", "max_tokens": 3}), [{"prompt": "x", "max_tokens": 3}]),
        ("a.jsonl", json.dumps({"prompt": "x", "completion": "y"}), [{"prompt": "x"}]),
        ("a.jsonl", json.dumps({"messages": [*CHAT, {"role": "assistant", "content": "ho"}]}), [{"messages": CHAT}]),
        ("sharegpt.json", json.dumps(SHARE_GPT), [{"messages": CHAT}]),
        ("a.jsonl", json.dumps({"prompt_token_ids": [1, 2], "token_ids": [3]}), [{"prompt": [1, 2]}]),
    ],
)  # fmt: skip
def test_data_sets(name: str, text: str, expected: list[dict[str, Any]], tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_text(text)
    assert load(str(file), 10) == expected
    if name.endswith(".json"):
        packed = tmp_path / "packed.json.gz"
        packed.write_bytes(gzip.compress(text.encode()))
        assert load(str(packed), 10) == expected


def test_built_in_sets_and_limits(tmp_path: Path) -> None:
    assert len(load("chat", 5)) == 5 and load("edit", 1)[0]["continue_final_message"] is True
    (tmp_path / "bad.jsonl").write_text('"one"\n17\n')
    with pytest.raises(ConfigError, match="prompt 2"):
        load(str(tmp_path / "bad.jsonl"), 10)
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(ConfigError, match="no prompt"):
        load(str(tmp_path / "empty.jsonl"), 10)
    assert fitted({"prompt": "x", "top_p": 1}, True) == {"messages": [{"role": "user", "content": "x"}], "top_p": 1}
    assert fitted({"messages": CHAT}, False) == {"prompt": "hi"}
    with pytest.raises(ConfigError, match="token ids"):
        fitted({"prompt": [1]}, True)
