"""A method is its card, its head and its drafter: no other file names one."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from house_figures import literal_names

from augury.methods.recognise import KINDS, SPECULATORS, choose, recognise
from augury.methods.registry import LOOK_UPS, METHODS, load
from augury.methods.spec import Case, Method
from augury.train.pairs import PairHead
from augury.train.trainee import Trainee

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


def test_cards_are_read_without_pydantic_or_torch() -> None:
    code = "import augury.methods.recognise, sys; sys.exit(bool({'torch', 'pydantic', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("card", METHODS.values(), ids=METHODS)
def test_a_card_is_complete(card: Method) -> None:
    assert card.help.endswith(".") and card.name == card.name.lower()
    assert load(card.drafter).name == card.name
    for gate in card.gates.values():
        assert callable(load(gate.train)) and gate.steps > 0
    for made in card.trained.values():
        assert issubclass(load(made.trainee), Trainee)
        assert not made.head or issubclass(load(made.head), PairHead)
        assert set(made.settings) <= set(card.keys)
    if card.look_up is not None:
        assert card.weights == "none" and callable(load(card.look_up.walker).walk)
        assert card.look_up.starts and card.look_up.twin_of in ("", *LOOK_UPS)
        assert {key for start in card.look_up.starts for key in start} | set(card.look_up.forgets) <= set(card.keys)
    if card.vllm_new_runner is not None:
        assert card.vllm_new_runner[0] < card.vllm_new_runner[1]
    assert card.usual is None or card.continues_target  # a head without a cache has no usual size
    assert not card.always_parallel or "parallel_drafting" in card.keys
    assert card.default_tokens(Case({"suffix_decoding_max_tree_depth": 24})) is None or card.weights == "none"


@pytest.mark.parametrize("card", METHODS.values(), ids=METHODS)
def test_what_a_card_says_of_its_checkpoints_is_recognised(card: Method) -> None:
    for kind in card.kinds:
        assert KINDS[kind] is card  # no two methods claim one kind
        told = recognise({"model_type": kind})
        assert told is not None and told.method == card.name
    for kind in card.signs.speculators:
        assert SPECULATORS[kind][0] is card
    for part in card.signs.architectures:
        told = recognise({"architectures": [f"Some{part}ForCausalLM"]})
        assert told is not None and told.method == card.name, part
    for name in card.signs.fields:
        told = recognise({name: 1})
        assert told is not None and told.method == card.name
    for part in (*card.signs.names, *card.signs.stand_ins):
        told = choose("", part if part in card.signs.stand_ins else f"some/Model-{part.upper()}7", {})
        assert told is not None and told.method == card.name


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
from augury.config.facts import Target, read_facts
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
config = resolve({"model": str(folder)}, Target("t", facts))
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
