"""The drafters of docs/write-a-drafter.md run as printed, and mistakes are told in vLLM's kinds of error."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from augury import LLM, SamplingParams

PAGE = Path(__file__).parents[2] / "docs" / "write-a-drafter.md"
PROMPTS = ["abcabcabc", "hello hello", "z", "the cat sat on the mat and the cat sat"]


@pytest.fixture(scope="module", autouse=True)
def printed() -> Any:
    """The page's Python, as a module."""
    module: Any = types.ModuleType("printed_drafters")
    for code in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        exec(compile(code, str(PAGE), "exec"), module.__dict__)
    module.Mute = type("Mute", (), {"__init__": lambda self, config: None})
    module.Broken = type("Broken", (), {"__init__": lambda self, config: 1 / 0, "propose": None})
    module.Odd = type(
        "Odd",
        (),
        {
            "__init__": lambda self, config: None,
            "propose": lambda self, fresh, lengths, rows, slot_mappings=None: [[1, -1, 5] if f else [] for f in fresh],
        },
    )
    module.Short = type(
        "Short", (), {"__init__": lambda self, config: None, "propose": lambda self, *a, **k: [[1]] * 99}
    )
    sys.modules["printed_drafters"] = module
    yield
    del sys.modules["printed_drafters"]


def drafted(toy_model: Path, name: str) -> LLM:
    spec = {"method": "custom_class", "model": f"printed_drafters.{name}", "num_speculative_tokens": 4}
    return LLM(str(toy_model), device="cpu", max_model_len=256, speculative_config=spec)


@pytest.mark.parametrize("name", ["Echo", "Repeat", "Odd"])
def test_a_drafter_of_your_own_changes_no_text(toy_model: Path, name: str) -> None:
    plain, llm = LLM(str(toy_model), device="cpu", max_model_len=256), drafted(toy_model, name)
    for temperature in (0.0, 0.8):
        params = [SamplingParams(temperature=temperature, seed=i, max_tokens=30, ignore_eos=True) for i in range(4)]
        texts = [[o.outputs[0].token_ids for o in x.generate(PROMPTS, params, use_tqdm=False)] for x in (plain, llm)]
        assert texts[0] == texts[1]
    assert llm.engine.stats.spec.num_draft_tokens > 0


def test_the_method_is_told_from_the_path(toy_model: Path) -> None:
    spec = {"model": "printed_drafters.Echo", "num_speculative_tokens": 2}
    llm = LLM(str(toy_model), device="cpu", max_model_len=256, speculative_config=spec)
    assert llm.config.speculative_config is not None and llm.config.speculative_config.method == "custom_class"


@pytest.mark.parametrize(
    ("path", "kind", "says"),
    [
        ("nodots", ValueError, "dotted import path"),
        ("no_such_module.Drafter", ImportError, "cannot be imported"),
        ("printed_drafters.Nobody", AttributeError, "no class 'Nobody'"),
        ("printed_drafters.Mute", AttributeError, "no method `propose`"),
        ("printed_drafters.Broken", RuntimeError, "ZeroDivisionError"),
    ],
)
def test_mistakes_are_told(toy_model: Path, path: str, kind: type[Exception], says: str) -> None:
    spec = {"method": "custom_class", "model": path, "num_speculative_tokens": 2}
    with pytest.raises(kind, match=says):
        LLM(str(toy_model), device="cpu", max_model_len=256, speculative_config=spec)


def test_a_drafter_that_answers_wrongly_is_named(toy_model: Path) -> None:
    with pytest.raises(ValueError, match=r"printed_drafters.Short.propose must return one list per request"):
        drafted(toy_model, "Short").generate(PROMPTS[:2], SamplingParams(max_tokens=8), use_tqdm=False)
