"""The target's answers to prompts, made once and kept."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from augury.config.errors import ConfigError
from augury.config.files import write_text
from augury.config.fingerprint import fingerprint, name_of
from augury.engine.llm import LLM
from augury.model.checkpoint import read_config
from augury.model.tokenizer import Tokenizer
from augury.tools.train.options import PROMPT, Tell, TrainOptions, device_of
from augury.tools.train.prompts import Messages, read_prompts
from augury.train.corpus import TEMPERATURE, Corpus, answer
from augury.train.openings import LONGEST, openings

MANY = 512  # answers that a GPU writes at once


class Maker:
    """Makes what is not there yet; the engine is started only if something is missing."""

    def __init__(self, order: TrainOptions, directory: Path, tell: Tell) -> None:
        self._order, self._directory, self._tell = order, directory, tell
        self._kept = order.answers or order.out
        self._llm: LLM | None = None

    def openings(self) -> list[Messages]:
        """Prompts in the target's own words; a directory of several targets keeps those of each."""
        count = self._order.openings
        if not count:
            return []
        path = self._openings_file()
        if not path.is_file():
            words = "openings: the target writes prompts"
            self._tell(words, 0, count)
            found = openings(self._engine(), count, tick=lambda done: self._tell(words, done, count))
            self._kept.mkdir(parents=True, exist_ok=True)
            write_text(path, "".join(json.dumps(text) + "\n" for text in found))
        return read_prompts([path])

    def _openings_file(self) -> Path:
        """Where they are kept; a file of earlier releases, which names no target, serves the one that answered it."""
        count, mark = self._order.openings, fingerprint(self._directory)
        path, unnamed = self._kept / f"openings-{count}-{mark}.jsonl", self._kept / f"openings-{count}.jsonl"
        if not unnamed.is_file() or path.is_file():
            return path
        answers = self._kept / "corpus.safetensors"
        if answers.is_file() and Corpus.load(answers).about.get("target") == mark:
            return unnamed
        raise ConfigError(
            f"--openings: {unnamed} does not say which target wrote it; if it was {name_of(self._directory)}, rename "
            f"it to {path.name}, else move it away."
        )

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
        context = read_config(self._directory).max_position_embeddings
        room = min(context - order.answer_tokens, PROMPT)
        if room < 1:
            raise ConfigError(
                f"--answer-tokens {order.answer_tokens}: the target reads {context} tokens, with the prompt; ask for "
                "shorter answers."
            )
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
