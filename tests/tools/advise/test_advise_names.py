"""What an advice names: drafters to fetch, the wrong lever, the load that a server has, figures for other planners."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from advise_cases import PROFILE, ask
from staged import staged
from typer.testing import CliRunner
from vllm_text import Moment, started, text

from augury.cli import app
from augury.config.facts import ModelFacts
from augury.methods.registry import METHODS
from augury.tools.advise.advice import advise
from augury.tools.advise.candidates import AdviceInputs, Candidate
from augury.tools.advise.checkpoints import checkpoints, find_checkpoint
from augury.tools.advise.planners import for_planners
from augury.tools.advise.predict import At, Speedup
from augury.tools.advise.served import loads_of
from augury.tools.advise.target import find_target
from augury.tools.advise.traffic import Traffic
from augury.tools.advise.verdicts import NOT, USE, verdict


def run(*words: str) -> Any:
    return CliRunner().invoke(app, ["advise", *words], env={"COLUMNS": "100", "NO_COLOR": "1"})


# --- drafters --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "method", "model"),
    [
        ("llama-3.1-8b", "eagle3", "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"),
        ("llama-3.3-70b", "eagle3", "yuhuili/EAGLE3-LLaMA3.3-Instruct-70B"),
        ("qwen3-8b", "dflash", "z-lab/Qwen3-8B-DFlash-b16"),
        ("qwen3-8b", "draft_model", "Qwen/Qwen3-0.6B"),
        ("gpt-oss-120b", "eagle3", "nvidia/gpt-oss-120b-Eagle3-v2"),
        ("gpt-oss-20b", "eagle3", "RedHatAI/gpt-oss-20b-speculator.eagle3"),
    ],
)
def test_a_drafter_is_named(target: str, method: str, model: str) -> None:
    found = find_checkpoint(method, find_target(target))
    assert found is not None and found.model == model and "whose shape" not in found.remark(find_target(target))


def test_a_target_of_the_same_shape_is_offered_with_a_doubt() -> None:
    like = ModelFacts("acme/tuned", find_target("llama-3.1-8b").raw)
    found = find_checkpoint("eagle3", like)
    assert found is not None and "its card says whether it serves your version" in found.remark(like)
    other = ModelFacts("acme/tuned", {**like.raw, "hidden_size": 3584})
    assert find_checkpoint("eagle3", other) is None
    assert find_checkpoint("draft_model", ModelFacts("acme/tuned", find_target("qwen3-8b").raw)) is None


def test_every_pair_has_a_method_and_a_name_that_vllm_can_fetch() -> None:
    for one in checkpoints():
        assert one.method in METHODS and one.model.count("/") == 1 and one.target and "/" not in one.target
        assert METHODS[one.method].weights != "none"
    assert len({(one.method, one.target) for one in checkpoints()}) == len(checkpoints()), "one for each"


def test_the_advice_to_paste_has_a_real_name() -> None:
    told = run("--target", "llama-3.1-8b", "--gpu", "H200", "--json")
    found = json.loads(told.stdout)
    assert found["recommended"]["model"] == "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B" and "drafter>" not in told.stdout
    by_profile = advise(ask(profiles=[PROFILE])).recommended
    assert by_profile is not None and by_profile.config is not None
    assert by_profile.config["model"] == "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"


# --- the wrong lever -------------------------------------------------------------------------------------------------


def asked(prompt: float, answer: float, cached: float = 0.0) -> AdviceInputs:
    traffic = Traffic(prompt, answer, "agent", 500, "a trace", cached=cached)
    return replace(ask(profiles=[PROFILE]), traffic=traffic)


def test_traffic_that_reads_is_the_wrong_lever() -> None:
    advice = advise(asked(5786, 9))
    assert advice.recommended is None and "the wrong lever" in advice.against[0]
    assert "5,786 tokens in and 9 out" in advice.against[0]
    assert advise(asked(5786, 900)).recommended is not None
    assert advise(asked(5786, 90, cached=0.98)).recommended is not None, "what is cached is not read"


@pytest.mark.parametrize(("whole", "word"), [(1.01, NOT), (1.2, USE)])
def test_a_method_is_not_advised_by_its_decoding_alone(whole: float, word: str) -> None:
    decode, all_of_it = Speedup(1.6, 1.5, 1.7), Speedup(whole, whole, whole)
    found, reason = verdict(Candidate("suffix", {}, "yours", True), (At(8, 4, decode, all_of_it, 9, 9, 2.0),), None)
    assert found == word and ("the wrong lever" in reason) == (word == NOT)


# --- a server's load -------------------------------------------------------------------------------------------------


def test_the_load_is_the_servers(tmp_path: Path) -> None:
    page = text(Moment([started((0.7, 0.5, 0.3), running=20, waiting=4)]))
    page += 'vllm:prompt_tokens_total{engine="0",model_name="meta-llama/Llama-3.1-8B-Instruct"} 500000\n'
    page += 'vllm:request_success_total{engine="0",model_name="meta-llama/Llama-3.1-8B-Instruct"} 900\n'
    with staged(page, page) as stage:
        words = ("--target", "llama-3.1-8b", "--gpu", "H200", "--url", stage.url)
        found = json.loads(run(*words, "--json").stdout)
        assert sorted(map(int, found["decoding_share"])) == [12, 24, 48]
        assert any("24 at once now" in said and "half of it and twice" in said for said in found["assumed"])
    with staged(page, page) as stage:
        words = ("--target", "llama-3.1-8b", "--gpu", "H200", "--url", stage.url)
        asked = json.loads(run(*words, "--json", "--concurrency", "2,3").stdout)
    assert sorted(map(int, asked["decoding_share"])) == [2, 3], "what was asked for counts"
    assert loads_of(Traffic(running=0)) == () and loads_of(Traffic(running=1)) == (1, 2)


# --- other planners --------------------------------------------------------------------------------------------------


def test_other_planners_get_what_they_ask_for() -> None:
    best = advise(ask(profiles=[PROFILE])).recommended
    assert best is not None
    told = for_planners(best)
    assert told is not None and told["nextn"] == 3
    rates = [b / a for a, b in pairwise((1, *PROFILE["marginal_accept_rates"]))]
    assert told["nextn_accept_rates"] == pytest.approx(rates, abs=0.001)
    kept = [told["nextn_accept_rates"][0]]
    for rate in told["nextn_accept_rates"][1:]:
        kept.append(kept[-1] * rate)
    assert told["nextn_accepted"] == pytest.approx(sum(kept), abs=0.01), "the rates give the mean"
    shown = run("--target", "llama-3.1-8b", "--gpu", "H200").stdout
    assert "nextn_accepted 1.81" in shown and "--aic-nextn-accept-rates 0.768,0.768,0.768" in shown
