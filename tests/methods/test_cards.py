"""Every method's card: complete, light to read, and recognised by what it says of its checkpoints."""

from __future__ import annotations

import subprocess
import sys

import pytest

from augury.methods.recognise import KINDS, SPECULATORS, choose, recognise
from augury.methods.registry import LOOK_UPS, METHODS, load
from augury.methods.spec import Case, Method
from augury.train.pairs import PairHead
from augury.train.trainee import Trainee


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
