"""`advise --check`: prediction, choice and measurement of one server, side by side."""

from __future__ import annotations

import json

import pytest
from staged import staged
from typer.testing import CliRunner
from vllm_text import Moment, started, text

from augury.cli import app

MODEL = "meta-llama/Llama-3.1-8B-Instruct"


def page(measured: tuple[float, float, float] | None, method: str = "eagle3") -> str:
    """The metrics of a server that drafts three tokens, of which 70, 50 and 30 in a hundred are right."""
    lines = [
        f'vllm:prompt_tokens_total{{engine="0",model_name="{MODEL}"}} 500000',
        f'vllm:request_success_total{{engine="0",model_name="{MODEL}"}} 900',
        f'augury:method_info{{model_name="{MODEL}",method="{method}"}} 1',
    ]
    for bound, value in zip(("ratio", "low", "high"), measured or (), strict=False):
        lines.append(f'augury:speedup_measured{{model_name="{MODEL}",bound="{bound}"}} {value}')
    return text(Moment([started((0.7, 0.5, 0.3), running=8)])) + "\n".join(lines) + "\n"


def run(shown: str, *more: str) -> str:
    """What the command prints."""
    with staged(shown, shown) as stage:
        words = ["advise", "--target", "llama-3.1-8b", "--gpu", "H200", "--check", stage.url, *more]
        done = CliRunner().invoke(app, words)
    return done.output if done.exit_code == 0 else f"failed: {done.output} {done.exception}"


@pytest.mark.parametrize(
    ("measured", "says"),
    [
        ((1.9, 1.7, 2.1), "agree within their intervals"),
        ((0.8, 0.75, 0.85), "the prediction is higher"),
        ((9.0, 8.9, 9.1), "the prediction is lower"),
        (None, "does not measure itself"),
    ],
)
def test_prediction_beside_measurement(measured: tuple[float, float, float] | None, says: str) -> None:
    found = json.loads(run(page(measured), "--json"))
    assert found["method"] == "eagle3" and found["requests"] == 8 and found["drafted_a_draft"] == 3
    assert found["predicted_as_drafted"]["tokens"] == 3 and 1 < found["predicted_as_drafted"]["times_plain"] < 2.5
    assert found["measured"] == (measured and measured[0])
    assert says in found["words"]


def test_the_screen_says_the_same() -> None:
    shown = run(page((1.9, 1.7, 2.1)))
    assert "eagle3 at 8 requests" in shown and "1.90 (1.70 to 2.10)" in shown and "agree" in shown


OF_VLLM = page(None).replace("augury:method_info", "augury:other_info")


def test_a_server_that_names_no_method_is_refused() -> None:
    said = run(OF_VLLM)
    assert said.startswith("failed") and "does not report its method" in said and "give --method" in said


@pytest.mark.parametrize("method", ["eagle3", "ngram", "ngram_gpu", "suffix"])
def test_vllm_s_method_can_be_told(method: str) -> None:
    found = json.loads(run(OF_VLLM, "--json", "--method", method))
    assert found["method"] == method and found["predicted_as_drafted"]["tokens"] == 3
    # 70, 50 and 30 in a hundred: 2.5 tokens a step, less what three more rows and drafting cost
    assert 1.3 < found["predicted_as_drafted"]["times_plain"] <= 2.5
    assert "does not measure itself" in found["words"]


def test_a_method_that_cannot_be_is_refused() -> None:
    assert "'eagle9' is unknown" in run(OF_VLLM, "--method", "eagle9")
    assert "drafts with eagle3" in run(page(None), "--method", "ngram")
    silent = "\n".join(line for line in OF_VLLM.splitlines() if "spec_decode" not in line) + "\n"
    assert "drafted nothing yet" in run(silent, "--method", "ngram")
    done = CliRunner().invoke(app, ["advise", "--target", "llama-3.1-8b", "--gpu", "H200", "--method", "ngram"])
    assert "--url or --check" in f"{done.output} {done.exception}"


def test_the_acceptance_of_a_vllm_is_used_once_its_method_is_told() -> None:
    with staged(OF_VLLM, OF_VLLM) as stage:
        words = ["advise", "--target", "llama-3.1-8b", "--gpu", "H200", "--json", "--url", stage.url]
        for more, yours in (([], set()), (["--method", "ngram"], {"ngram_gpu"})):
            said = json.loads(CliRunner().invoke(app, [*words, *more]).output)
            assert {one["method"] for one in said["methods"] if one["acceptance_is_yours"]} == yours
