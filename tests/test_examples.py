"""The scripts of examples/ run as they are, on the toy, and show what they say they show."""

from __future__ import annotations

import re
import runpy
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest
from served import Served

EXAMPLES = Path(__file__).parents[1] / "examples"
pytestmark = pytest.mark.usefixtures("one_thread_throughout")


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run an example's main() and give what it printed."""

    def run(name: str, *arguments: object) -> str:
        module = types.ModuleType(f"examples_{name}")
        monkeypatch.setitem(sys.modules, module.__name__, module)  # a class in it is named by its import path
        module.__dict__.update(runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name=module.__name__))
        module.main(*arguments)
        return capsys.readouterr().out

    return run


def test_every_example_is_tested() -> None:
    ran = set(re.findall(r'= example\("(\w+)"|in example\("(\w+)"|int\(example\("(\w+)"', Path(__file__).read_text()))
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {"".join(names) for names in ran}


def test_ngram(example: Callable[..., str], toy_model: Path) -> None:
    assert "same text: True" in example("offline_ngram", str(toy_model), 12)


def test_a_trained_head(
    example: Callable[..., str], toy_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUGURY_CACHE", str(tmp_path))
    printed = example("trained_head", str(toy_model), 16, 60)
    assert "same text: True" in printed
    assert float(printed.split("acceptance length ")[1].split()[0]) > 1.5


def test_a_tree(example: Callable[..., str], toy_model: Path) -> None:
    lines = example("tree", str(toy_model), 24).splitlines()
    assert [line.split(":")[0] for line in lines] == ["plain", "chain", "tree"]
    assert len({line.partition("passes, ")[2] for line in lines}) == 1
    passes = [int(line.split()[1]) for line in lines]
    assert passes[2] <= passes[1] < passes[0]


def test_a_drafter_of_your_own(example: Callable[..., str], toy_model: Path) -> None:
    drafted = int(example("custom_drafter", str(toy_model), 24).rsplit("of ", 1)[1].split()[0])
    assert drafted > 0


def test_metrics_of_an_engine(example: Callable[..., str], toy_model: Path) -> None:
    assert "vllm:spec_decode_num_accepted_tokens" in example("read_metrics", str(toy_model), 12)


def test_a_server(example: Callable[..., str], server: Served) -> None:
    printed = example("openai_client", server.url, 12)
    metrics = example("read_metrics", server.url)
    assert "same text without speculation: True" in printed and "num_accepted_draft_tokens" in printed
    assert "vllm:spec_decode_num_drafts_total" in metrics
