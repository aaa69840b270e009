"""Drafters of random weights for the toy, of every kind that is trained."""

from __future__ import annotations

from pathlib import Path

import torch

from augury.model.checkpoint import read_config
from augury.train.batches import Teacher
from augury.train.pairs import shake
from augury.train.trainee import Goal, layers_of, trainee_of

KINDS = ("eagle3", "eagle", "medusa", "mlp_speculator", "draft_model", "dflash")


def drafter(toy_model: Path, kind: str, seed: int, directory: Path, vocabulary: int = 0) -> Path:
    """A drafter of random weights: it guesses something, and another one guesses something else."""
    config = read_config(toy_model)
    teacher = Teacher(toy_model, layers_of(kind, config), torch.device("cpu"), torch.float32)
    words = torch.arange(vocabulary or config.vocab_size)
    trainee = trainee_of(kind)(Goal(kind, 3, vocabulary, 1), config, teacher, words)
    shake(trainee.module, seed, 0.2)
    trainee.export(toy_model, directory)
    return directory
