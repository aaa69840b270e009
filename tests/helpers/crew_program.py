"""One of several processes that train together: a whole run, and one that is killed and goes on."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from augury.model.checkpoint import read_config
from augury.train.batches import Teacher
from augury.train.corpus import Corpus
from augury.train.crew import Crew
from augury.train.loop import Progress, Schedule, TrainingRun
from augury.train.trainee import Goal, layers_of, trainee_of

KIND, KILLED_AT = "eagle3", 5


class Killed(Exception):
    """The end of a process, as its colleagues see it."""


def run_of(target: Path, directory: Path, schedule: Schedule, crew: Crew) -> TrainingRun:
    """A run on the toy; all but the first begin with other weights than the first."""
    config = read_config(target)
    teacher = Teacher(target, layers_of(KIND, config), torch.device("cpu"), torch.float32)
    trainee = trainee_of(KIND)(Goal(KIND, 3), config, teacher, torch.arange(config.vocab_size))
    with torch.no_grad():
        for tensor in trainee.module.parameters():
            tensor.add_(0.01 * crew.rank)
    return TrainingRun(trainee, teacher, schedule, target, directory, crew)


def kill(progress: Progress) -> None:
    """In the midst of the way to a validation."""
    if progress.step == KILLED_AT:
        raise Killed


def main() -> None:
    """Words: the target, the corpus, a directory for both runs, the schedule."""
    torch.set_num_threads(1)
    target, corpus, out = Path(sys.argv[1]), Corpus.load(Path(sys.argv[2])), Path(sys.argv[3])
    schedule, crew = Schedule(**json.loads(sys.argv[4])), Crew.join()
    whole = run_of(target, out / "whole", schedule, crew).train(corpus, {"a": corpus}).history
    try:
        run_of(target, out / "broken", schedule, crew).train(corpus, {"a": corpus}, kill)
    except Killed:
        again = run_of(target, out / "broken", schedule, crew)
        assert again.resume()
        assert again.train(corpus, {"a": corpus}).history == whole
        (out / f"{crew.rank}.json").write_text(json.dumps(whole))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
