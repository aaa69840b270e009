"""Training and validation texts: answers to prompts, a server's collected answers, or both."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from augury.config.errors import ConfigError
from augury.model.tokenizer import Tokenizer
from augury.tools.train.answers import Maker
from augury.tools.train.options import Tell, TrainOptions
from augury.tools.train.prompts import ALL_HELD, Messages, read_prompts
from augury.train.collected import read_collected
from augury.train.corpus import Corpus
from augury.train.loop import Held
from augury.train.turns import Turns

SERVED = "collected"  # the name for figures on served answers
Prompts = dict[str, list[Messages]]


def texts(order: TrainOptions, directory: Path, longest: int, heat: float, tell: Tell) -> tuple[Corpus, Held]:
    """The training corpus, and the validation corpora by name; no held-out prompt is in the training corpus."""
    whole = _held_out(order)
    kept = {json.dumps(messages) for some in whole.values() for messages in some}  # also those beyond --held-prompts
    corpora, held = list[Corpus](), Held()
    if order.collected is not None:
        asks = [messages for some in whole.values() for messages in some]
        left_out = Turns(Tokenizer(directory), asks).hold if asks else None
        served, held[SERVED] = read_collected(order.collected, directory, longest, left_out)
        corpora.append(served)
    maker = Maker(order, directory, tell)
    if asked := _asked(order, maker, kept):
        corpora.append(_within(longest, "corpus", maker.corpus("corpus", asked, 0.5)))
    end, share = (f"-T{heat:g}", 1.0) if heat else ("", 0.0)
    for name, some in whole.items():
        called = f"held-{name}{end}"
        held[name] = _within(longest, called, maker.corpus(called, some[: order.held_prompts], share, heat))
    first, *others = corpora
    return sum(others, first), held


def _within(longest: int, name: str, made: Corpus) -> Corpus:
    """The texts whose answer is not cut off by `longest`; the number of the others is printed."""
    kept = made.within(longest)
    if len(kept) == len(made):
        return made
    if not len(kept):
        raise ConfigError(
            f"--longest {longest}: all {len(made)} texts of {name} are cut before their answer; raise it, or "
            "give shorter prompts."
        )
    cut = len(made) - len(kept)
    print(f"{name}: {cut} of {len(made)} texts are left out: --longest {longest} cuts their answer.", file=sys.stderr)
    return kept


def _held_out(order: TrainOptions) -> Prompts:
    """The prompts of every held-out file by the file's name."""
    names = [path.stem for path in order.held_out]
    if alike := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(f"--held-out: two files are called {alike}, the name of their figures; rename one.")
    if order.collected is not None and SERVED in names:
        raise ConfigError(f"--held-out: {SERVED} is what figures on --from are called; rename the file.")
    return {path.stem: read_prompts([path], "--held-out") for path in order.held_out}


def _asked(order: TrainOptions, maker: Maker, kept: set[str]) -> list[Messages]:
    """The prompts to answer: the files' and those that the target generates, without held-out ones."""
    files = read_prompts(order.prompts) if order.prompts else []
    asked = [messages for messages in files if json.dumps(messages) not in kept]
    if files and not asked:
        raise ConfigError(ALL_HELD)
    return asked + [messages for messages in maker.openings() if json.dumps(messages) not in kept]
