"""MLP speculators: a small recurrent network that mixes the target's hidden state with each guessed token in turn."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from augury.kernels import Ops
from augury.kernels.top import widened
from augury.methods.spec import whole
from augury.model.errors import ModelError
from augury.model.heads.dummy import DummyWeights
from augury.model.heads.files import Weights, read_raw_config, read_tensors, read_vocabulary
from augury.model.heads.lighter import lighter
from augury.model.heads.mlp_lstm import load_lstm
from augury.model.heads.mlp_parts import InputNorm, MLPSizes, Norm, RecurrentSpeculator, State, read_norm, width_of
from augury.model.layers import AnyLinear
from augury.model.target import Target

KIND = "MLP speculator"
# Arctic's trainer wraps each part in a sequence of one.
NESTED = re.compile(r"^(emb|proj|ln)\.(\d+)\.0\.(weight|bias)$")


class StageWeights(NamedTuple):
    """The weights of one guess."""

    embedding: Tensor
    projection: AnyLinear
    norm: Norm
    head: AnyLinear


class MLPSpeculator:
    """A RecurrentSpeculator: project, add the token, norm, GELU."""

    def __init__(
        self, target: Target, sizes: MLPSizes, ops: Ops, stages: list[StageWeights], known: Tensor | None
    ) -> None:
        self.sizes, self.stages = sizes, stages
        self.known = known  # int64: the target's id of each token it guesses among; None: all of them
        self.first = InputNorm(target, sizes, ops)

    @torch.no_grad()
    def begin(self, hidden: Tensor) -> State:
        """See RecurrentSpeculator.begin."""
        return (self.first(hidden),)

    @torch.no_grad()
    def step(self, i: int, state: State, tokens: Tensor) -> tuple[Tensor, State]:
        """See RecurrentSpeculator.step."""
        stage = self.stages[i]
        x = stage.projection(state[0])
        x = torch.add(x, F.embedding(tokens, stage.embedding).to(x.dtype), alpha=self.sizes.token_weight)
        x = F.gelu(stage.norm(x))
        return widened(stage.head(x).float(), self.known, self.sizes.vocabulary), (x,)


def load_speculator(
    directory: Path, target: Target, dtype: torch.dtype, steps: int, dummy: bool = False
) -> RecurrentSpeculator:
    """Read a checkpoint for the first `steps` guesses: IBM's, or one of Arctic's two kinds."""
    raw = read_raw_config(directory)
    kind = raw.get("method", "sum_rnn")
    if kind not in ("sum_rnn", "sum_lstm"):
        raise ModelError(f"{directory}: method {kind!r} is unknown for an {KIND}; sum_rnn and sum_lstm are known.")
    sizes = read_sizes(directory, raw, target)
    if steps > sizes.steps:
        raise ModelError(
            f"{directory} guesses n_predict={sizes.steps} tokens and has no weights for guess {sizes.steps + 1}: an "
            f"{KIND} is not run again on itself; set num_speculative_tokens (or the depth of the tree) to "
            f"{sizes.steps} or less."
        )
    tensors = {} if dummy else {_plain(name): tensor for name, tensor in read_tensors(directory).items()}
    if kind == "sum_rnn" and sizes.tied:
        tensors = _untied(directory, tensors, sizes.steps)
    if dummy:
        weights: Weights = DummyWeights(directory, dtype, target.device)
    else:
        weights = Weights(directory, tensors, dtype, target.device)
    if kind == "sum_lstm":
        return load_lstm(weights, raw, tensors, target, sizes)
    return _load_mlp(weights, tensors, target, sizes, steps)


def read_sizes(directory: Path, raw: dict[str, Any], target: Target) -> MLPSizes:
    """The sizes of config.json, or an error that names the key."""
    lstm = raw.get("method") == "sum_lstm"
    emb = width_of(directory, raw, "emb_dim")
    # Arctic's emb_dim is the width of the embeddings; the states' width has a name of its own.
    hidden = whole(raw.get("input_hidden_dim")) or (target.hidden_size if lstm else emb)
    sizes = MLPSizes(
        hidden=hidden,
        inner=width_of(directory, raw, "inner_dim", emb) or emb,
        steps=whole(raw.get("n_predict")) or 0,
        vocabulary=whole(raw.get("vocab_size")) or 0,
        tied=bool(raw.get("tie_weights", False)),
        scaled=bool(raw.get("scale_input", False)),
        words=read_vocabulary(raw, target.vocab_size),
    )
    if not sizes.steps or not sizes.vocabulary:
        name = "vocab_size" if sizes.steps else "n_predict"
        raise ModelError(f"{directory / 'config.json'}: {name} must be a whole number above 0; an {KIND} needs it.")
    wrong = [("hidden size", hidden, target.hidden_size), ("vocabulary", sizes.vocabulary, target.vocab_size)]
    for what, ours, theirs in wrong:
        if ours != theirs:
            raise ModelError(
                f"{directory} was made for a {what} of {ours}, the target has {theirs}; take the speculator that was "
                "trained for this target."
            )
    return sizes


def _plain(name: str) -> str:
    return NESTED.sub(r"\1.\2.\3", name.removeprefix("speculator."))


def _load_mlp(
    weights: Weights, tensors: dict[str, Tensor], target: Target, sizes: MLPSizes, steps: int
) -> MLPSpeculator:
    inner, vocabulary = sizes.inner, sizes.vocabulary
    known, words = weights.targets(sizes.words, vocabulary), sizes.words
    shared: dict[str, Any] = {}

    def embedding(name: str) -> Tensor:
        """A row for every token of the target; those the speculator never guesses share its last one."""
        if known is None:
            return weights.matrix(name, vocabulary, inner)
        rows = torch.full((vocabulary,), words, device=known.device)
        return weights.matrix(name, words + 1, inner)[rows.scatter(0, known, torch.arange(words, device=known.device))]

    def linear(name: str, rows: int, columns: int) -> AnyLinear:
        return lighter(weights.linear(name, rows, columns, False))

    def part(name: str, i: int, last_own: int, read: Callable[[str], Any]) -> Any:
        """Part `name` of stage i; tied stages past `last_own` share the one of that stage."""
        place = f"{name}.{min(i, last_own) if sizes.tied else i}"
        if place not in shared:
            shared[place] = read(place)
        return shared[place]

    stages = [
        StageWeights(
            part("emb", i, 0, lambda at: embedding(f"{at}.weight")),
            part("proj", i, 1, lambda at: linear(at, inner, inner if int(at[5:]) else sizes.hidden)),
            part("ln", i, 0, lambda at: read_norm(weights, at, inner)),
            part("head", i, 0, lambda at: linear(at, words, inner)),
        )
        for i in range(steps)
    ]
    unused = [n for n in tensors if n.split(".")[1:2] and n.split(".")[1] in map(str, range(steps, sizes.steps))]
    weights.drop(*unused)
    weights.finish(KIND)
    return MLPSpeculator(target, sizes, weights.ops, stages, known)


def _untied(directory: Path, tensors: dict[str, Tensor], steps: int) -> dict[str, Tensor]:
    """Tied weights under their first number alone: files list them once, under any number, or once for every guess."""
    kept: dict[str, Tensor] = {}
    for name in sorted(tensors):
        part, _, rest = name.partition(".")
        number, _, kind = rest.partition(".")
        tied = part in ("emb", "proj", "ln", "head") and number.isdigit() and int(number) < steps
        home = f"{part}.{min(int(number), int(part == 'proj'))}.{kind}" if tied else name
        if not torch.equal(kept.setdefault(home, tensors[name]), tensors[name]):
            raise ModelError(f"{directory}: its config says tie_weights, but {name} differs from {home}.")
    return kept
