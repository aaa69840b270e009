"""The whole of a training: prompts, answers, gate, steps, and what came of it."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from augury.config.errors import ConfigError
from augury.config.files import make_directory, write_text
from augury.config.fingerprint import fingerprint
from augury.engine.llm import LLM
from augury.methods.registry import METHODS
from augury.model.checkpoint import read_config
from augury.model.load import has_plain_layers
from augury.model.store import resolve
from augury.model.tokenizer import Tokenizer
from augury.tools.shared.profile import make_profile
from augury.tools.train.prompts import Messages, read_prompts
from augury.train.batches import Teacher
from augury.train.collected import read_collected
from augury.train.corpus import TEMPERATURE, Corpus, answer
from augury.train.crew import Crew
from augury.train.gate import check_gate
from augury.train.loop import BEST, Held, Progress, Schedule, TrainingRun
from augury.train.openings import LONGEST, openings
from augury.train.speculators import as_speculator
from augury.train.trainee import Goal, kinds, layers_of, trainee_of
from augury.train.trim import said_most
from augury.train.warm_start import Origin

Report = dict[str, Any]
PROMPT = 1024  # tokens; longer prompts are left out, since little of their answers would be read
SPECULATORS = "speculators"  # the best drafter once more, in that library's format
MANY = 512  # answers that a GPU writes at once
Tell = Callable[[str, int, int], None]  # what is being done, how far it is, of how much


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """What was asked for."""

    method: str
    target: str
    prompts: list[Path]
    held_out: list[Path]
    out: Path
    answer_tokens: int
    held_prompts: int
    vocabulary: int
    depth: int
    layers: int
    device: str
    openings: int = 0  # prompts that the target writes itself, besides those of the files
    collected: Path | None = None  # what a server collected
    init: Path | None = None  # a drafter to go on from
    answers: Path | None = None  # where answers are kept; several runs may share them


def run_training(
    order: TrainOptions, settings: dict[str, Any], epochs: float, gate: bool, tell: Tell
) -> dict[str, Any]:
    """Train, and say what the best checkpoint is worth."""
    kind, goal = trainee_of(order.method), Goal(order.method, order.depth, order.vocabulary, order.layers)
    kind.check(goal, settings["tokens"])
    directory = resolve(order.target, quiet=True)
    config = read_config(directory)
    heat = settings["temperature"]
    _check(order, config, heat)
    origin = Origin(order.init, directory) if order.init is not None else None
    crew = Crew.join()
    device = device_of(order.device)
    corpus, held = crew.tell(lambda: _texts(order, directory, settings["longest"], heat, tell))
    teacher = Teacher(
        directory, layers_of(order.method, config), device, torch.bfloat16 if device.type == "cuda" else torch.float32
    )
    if not len(corpus):
        raise ConfigError("--prompts: the target answers them with a word or none; give others.")
    words = chosen_words(corpus, config, order.vocabulary, origin)
    steps = math.ceil(epochs * (len(corpus) // min(settings["batch"], len(corpus))))
    schedule = Schedule(steps=steps, **settings)
    trainee = kind(goal, config, teacher, words)
    if origin is not None:
        origin.give(trainee)
    run = TrainingRun(trainee, teacher, schedule, directory, order.out, crew)
    share = None
    if not run.resume() and gate:
        doing = "gate: one answer learnt by heart"
        tell(doing, 0, 1)
        fresh = kind(goal, config, teacher, words)
        share = crew.tell(lambda: check_gate(fresh, teacher, corpus, directory, partial(tell, doing)))
    progress = run.train(corpus, held, lambda now: tell(_line(now), now.step, steps))
    crew.leave()
    return _result(order, run, progress, corpus, share)


def _check(order: TrainOptions, config: Any, heat: float) -> None:
    """Refuse what cannot be trained or written before the target answers prompts for hours."""
    if not has_plain_layers(config):
        raise ConfigError(f"--target {order.target}: heads are trained for Llama, Mistral, Qwen2 and Qwen3 models.")
    if order.vocabulary > config.vocab_size:
        raise ConfigError(f"--vocabulary {order.vocabulary}: the target has only {config.vocab_size} words.")
    if heat and order.collected is not None:
        raise ConfigError("--temperature: what a server collected was drawn as its clients asked; leave it out.")
    for option, path in (("--out", order.out), ("--answers", order.answers)):
        if path is not None:
            make_directory(path, option)


def device_of(name: str) -> torch.device:
    """The one that was asked for; by itself a GPU where there is one."""
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device cuda: torch sees no GPU; use auto or cpu.")
    return torch.device(name if name != "auto" else "cuda" if torch.cuda.is_available() else "cpu")


def _line(now: Progress) -> str:
    loss = "" if math.isnan(now.loss) else f": loss {now.loss:.3f}"
    return "training" + loss + (f", acceptance length {now.best:.2f}" if now.best else "")


def _texts(order: TrainOptions, directory: Path, longest: int, heat: float, tell: Tell) -> tuple[Corpus, Held]:
    """What to train on, and what to validate with: served answers, answers to prompts, or both."""
    if order.collected is None:
        return _answered(order, directory, heat, tell)
    served, kept = read_collected(order.collected, directory, longest)
    held = {"collected": kept}
    if not order.prompts:
        return served, held
    answered, more = _answered(order, directory, heat, tell)
    return served + answered, held | more


def _answered(order: TrainOptions, directory: Path, heat: float, tell: Tell) -> tuple[Corpus, Held]:
    """The target's answers to the prompts, and to each held-out file at one temperature; made once, kept in the run."""
    names = [path.stem for path in order.held_out]
    if alike := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(f"--held-out: two files are called {alike}, the name of their figures; rename one.")
    whole = {path.stem: read_prompts([path]) for path in order.held_out}
    kept = {json.dumps(messages) for some in whole.values() for messages in some}  # also what is not measured with
    held = {name: some[: order.held_prompts] for name, some in whole.items()}
    asked = [messages for messages in read_prompts(order.prompts) if json.dumps(messages) not in kept]
    if not asked:
        raise ConfigError("--prompts: every prompt is held out too; nothing is left to train on.")
    maker = _Maker(order, directory, tell)
    asked += [messages for messages in maker.openings() if json.dumps(messages) not in kept]
    corpus = maker.corpus("corpus", asked, 0.5)
    end = f"-T{heat:g}" if heat else ""
    share = 1.0 if heat else 0.0
    return corpus, {name: maker.corpus(f"held-{name}{end}", some, share, heat) for name, some in held.items()}


class _Maker:
    """Makes what is not there yet; the engine is started only if something is missing."""

    def __init__(self, order: TrainOptions, directory: Path, tell: Tell) -> None:
        self._order, self._directory, self._tell = order, directory, tell
        self._kept = order.answers or order.out
        self._llm: LLM | None = None

    def openings(self) -> list[Messages]:
        """Prompts in the target's own words."""
        count, path = self._order.openings, self._kept / f"openings-{self._order.openings}.jsonl"
        if not count:
            return []
        if not path.is_file():
            words = "openings: the target writes prompts"
            self._tell(words, 0, count)
            found = openings(self._engine(), count, tick=lambda done: self._tell(words, done, count))
            self._kept.mkdir(parents=True, exist_ok=True)
            write_text(path, "".join(json.dumps(text) + "\n" for text in found))
        return read_prompts([path])

    def corpus(self, name: str, asked: list[Messages], sampled: float, heat: float = 0.0) -> Corpus:
        """Answers to these prompts, as they were kept or new; `heat` is the temperature if it is not the usual one."""
        order, path = self._order, self._kept / f"{name}.safetensors"
        about = {
            "target": fingerprint(self._directory),
            "prompts": hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:16],
            "tokens": order.answer_tokens,
        }
        if path.is_file() and (kept := Corpus.load(path)).about.items() >= about.items():
            return kept
        tokenizer = Tokenizer(self._directory)
        ids = [tokenizer.chat(messages, add_generation_prompt=True) for messages in asked]
        room = min(read_config(self._directory).max_position_embeddings - order.answer_tokens, PROMPT)
        fitting = [prompt for prompt in ids if len(prompt) <= room]
        if not fitting:
            raise ConfigError(
                f"{name}: no prompt fits beside --answer-tokens {order.answer_tokens} (room for {room} tokens); "
                "give shorter ones, or ask for shorter answers."
            )
        words = f"{name}: the target answers"
        self._tell(words, 0, len(fitting))
        made = answer(
            self._engine(),
            fitting,
            order.answer_tokens,
            heat or TEMPERATURE,
            sampled,
            about,
            lambda done: self._tell(words, done, len(fitting)),
        )
        made.save(path)
        return made

    def _engine(self) -> LLM:
        if self._llm is None:
            self._llm = LLM(str(self._directory), device=self._order.device, **self._room())
        return self._llm

    def _room(self) -> dict[str, Any]:
        """A GPU answers many at once, in the precision that training reads features in."""
        if device_of(self._order.device).type == "cpu":
            return {}
        return {
            "dtype": "bfloat16",
            "max_num_seqs": MANY,
            "max_model_len": PROMPT + max(self._order.answer_tokens, LONGEST),
        }


def chosen_words(corpus: Corpus, config: Any, count: int, origin: Origin | None) -> torch.Tensor:
    """All tokens, or those that the answers hold most often, in order; a drafter that goes on keeps its own first."""
    everything = torch.arange(config.vocab_size)
    if not count:
        return everything
    own = origin.words if origin is not None and origin.words is not None else everything[:0]
    if len(own) >= count:
        return own[said_most(corpus, count, own, config.vocab_size)]
    others = everything[torch.isin(everything, own, invert=True)]
    more = others[said_most(corpus, count - len(own), others, config.vocab_size)]
    return torch.cat([own, more]).sort().values


def _result(
    order: TrainOptions, run: TrainingRun, progress: Progress, corpus: Corpus, share: float | None
) -> dict[str, Any]:
    best = max(progress.history, key=lambda line: sum(line["length"].values()), default=None)
    result: dict[str, Any] = {
        "method": order.method,
        "target": order.target,
        "drafter": str(order.out / BEST),
        "texts": len(corpus),
        "tokens": len(corpus.tokens),
        "steps": progress.step,
        "seconds": round(progress.seconds, 1),
        "gate": share,
        "k": run.schedule.tokens,
        "conditions": _conditions(order, run),
        "best": best,
        "history": progress.history,
    }
    if not run.crew.first:
        return result
    if best is not None:
        profile = _profile(order.method, run.schedule, best)
        write_text(order.out / BEST / "speculation_profile.json", json.dumps(profile, indent=2) + "\n")
        if kinds()[order.method].speculator[0]:
            as_speculator(order.out / BEST, order.target, run.schedule.tokens, order.out / SPECULATORS)
    write_text(order.out / "result.json", json.dumps(result, indent=2) + "\n")
    return result


def _conditions(order: TrainOptions, run: TrainingRun) -> dict[str, Any]:
    """What the figures depend on."""
    device = run.teacher.device
    return {
        "prompts": ", ".join(path.name for path in order.prompts),
        "openings": order.openings,
        "from": str(order.collected or ""),
        "init": str(order.init or ""),
        "vocabulary": order.vocabulary or "all",
        "depth": order.depth,
        **asdict(run.schedule),
        "processes": run.crew.size,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
    }


def _profile(method: str, schedule: Schedule, best: dict[str, Any]) -> dict[str, Any]:
    """speculation_profile.json of all held-out texts together."""
    histogram = [round(sum(counts)) for counts in zip(*best["histogram"].values(), strict=True)]
    accepted = [sum(histogram[i:]) for i in range(1, schedule.tokens + 1)]
    per_text = sum(best["per_text"].values()) / len(best["per_text"])
    sampling = f"temperature {schedule.temperature:g}" if schedule.temperature else "greedy"
    conditions = {"prompts": sorted(best["length"]), "sampling": sampling, "simulated": "on the target's own answers"}
    served = next(card.name for card in METHODS.values() if method in card.trained)  # p-eagle is a head of eagle3
    return make_profile(served, schedule.tokens, accepted, sum(histogram), histogram, per_text, conditions)
