"""A method is its card, its head and its drafter: no other file names one."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from house_figures import literal_names

SOURCE = Path(__file__).parents[1] / "src" / "augury"
ROOMS = ("methods", "drafters")  # cards and drafters
# Words that are a method's name and mean something else.
OTHER_WORDS = {
    ("cli.py", "suffix"),  # the command `augury suffix`
    ("serve/openai.py", "suffix"),  # a field of OpenAI's completions
    ("tools/run/demo.py", "ngram"),  # a field of the demo's record
    ("tools/bench/lookup/__main__.py", "ngram"),  # fields of its record
    ("tools/bench/lookup/__main__.py", "suffix"),
    ("train/medusa.py", "medusa"),  # a checkpoint's model_type, as its trainer writes it
    ("train/mlp_speculator.py", "mlp_speculator"),
}
KNOWLEDGE = ("tools/bench/gpu/anchors.py",)  # published figures, in Python so that a GPU machine needs no YAML


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('if method == "eagle3": pass', 1),
        ('PARALLEL = ("dflash", "dspark")', 2),
        ('{"ngram": 1, "suffix": 2}[method]', 2),
        ('match method:\n    case "mtp": pass', 1),
        ('known("deepseek_mtp")', 1),
        ('config = {"method": "ngram", "num_speculative_tokens": 4}', 0),
        ('"""Runs eagle3."""', 0),
    ],
)
def test_the_count_sees_what_it_should(text: str, found: int) -> None:
    assert len(list(literal_names(text))) == found


def test_no_other_file_names_a_method() -> None:
    wrong = []
    for path in sorted(SOURCE.rglob("*.py")):
        where = path.relative_to(SOURCE).as_posix()
        if where.startswith(tuple(f"{room}/" for room in ROOMS)) or where in KNOWLEDGE:
            continue
        names = [(line, name) for line, name in literal_names(path.read_text()) if (where, name) not in OTHER_WORDS]
        wrong += [f"{where}:{line} names {name}" for line, name in names]
    assert not wrong, "ask the method's card (methods/spec.py) instead: " + "; ".join(wrong)


NEW_METHOD = """
from augury.methods import registry
from augury.methods.fits import same_width
from augury.methods.spec import HEAD_KEYS, Band, GateRecipe, Method, Signs, UsualHead

registry.METHODS["echo"] = Method(
    name="echo", help="A head that nobody has trained.", drafter="augury.drafters.eagle:EagleDrafter",
    keys=(*HEAD_KEYS, "parallel_drafting"), weights="draft", features="last",
    signs=Signs(model_types=("echo_head",), names=("echo-",)),
    default_tokens=lambda case: (case.stated["echoes"], "the checkpoint's echoes"), check=same_width,
    lookahead=1, prefill_lookahead=1, vllm_since="0.31", band=Band((0.5, 0.6), (2.0, 3.0), "nowhere"),
    usual=UsualHead(layers=2), gates={"echo": GateRecipe("augury.train.eagle:train_eagle", 80)},
)

import json, sys
from pathlib import Path
from augury.tools.bench.methods_lines import all_lines
from augury.config.errors import ConfigError
from augury.config.facts import TargetInfo, read_facts
from augury.config.resolve import resolve
from augury.tools.advise.drafters import drafting_for
from augury.tools.advise.shape import shape_of
from augury.tools.live.expectation import known_method
from augury.tools.monitor.settings import settle

folder = Path(sys.argv[1])
target = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 100, "hidden_size": 64,
          "num_hidden_layers": 4, "num_attention_heads": 8, "intermediate_size": 128, "max_position_embeddings": 2048}
(folder / "config.json").write_text(json.dumps({"model_type": "echo_head", "echoes": 3, "hidden_size": 64}))
(folder / "t").mkdir()
(folder / "t" / "config.json").write_text(json.dumps(target))
facts = read_facts(str(folder / "t"))
config = resolve({"model": str(folder)}, TargetInfo("t", facts))
assert (config.method, config.num_speculative_tokens, config.kv_lookahead) == ("echo", 3, 3)
assert resolve({"model": "some/echo-head", "num_speculative_tokens": 2}).method == "echo"
try:
    resolve({"model": str(folder)}, as_of="0.30")
except ConfigError as error:
    assert "came with vLLM 0.31" in str(error)
else:
    raise AssertionError("an older release knows it")
assert drafting_for("echo", shape_of(facts)).shape.layers == 2
assert known_method("echo") == settle("echo", 3, "", None, None, "vllm", None, None, None).method.name == "echo"
assert [line.name for line in all_lines() if line.method == "echo"] == ["echo", "echo tree"]
"""


def test_a_new_card_is_all_that_others_need(tmp_path: Path) -> None:
    """Resolved, recognised, priced, watched and measured, with nothing touched but the registry."""
    command = [sys.executable, "-c", NEW_METHOD, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_list_in_contributing_is_of_files_that_exist() -> None:
    page = (SOURCE.parents[1] / "CONTRIBUTING.md").read_text()
    section = page[page.index("## Adding a method") : page.index("## Adding a key")].replace("<name>", "dflash")
    named = re.findall(r"(?:src|tests|docs)/[\w/.*-]*\w", section)
    assert len(named) > 12
    missing = [name for name in named if not list(SOURCE.parents[1].glob(name))]
    assert not missing, missing
