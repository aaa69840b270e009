"""Both sides of a question: vLLM's class in a process of its own, and what `augury config check --as-of` says."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from augury.tools.config.check import REFUSED, CheckedConfig, ConfigQuestion, derived, exit_code, judge
from augury.tools.doctor.examine import CheckedAgainst, examine
from vllm_oracle.cases import Case

Verdict = dict[str, Any]
DRIVER = Path(__file__).with_name("drive.py")


def placed(value: Any, models: Path) -> Any:
    """A case's words with the folders of its checkpoints in place."""
    if isinstance(value, dict):
        return {name: placed(inner, models) for name, inner in value.items()}
    return str(models / value[1:]) if isinstance(value, str) and value.startswith("@") else value


def theirs(cases: Iterable[Case], wheel: Path, models: Path, python: str = sys.executable) -> list[Verdict]:
    """What vLLM's own code answers; `-` as the wheel is the one that this Python has installed."""
    asked = [json.dumps(placed(case._asdict(), models)) for case in cases]
    done = subprocess.run(
        [python, str(DRIVER), str(wheel)],
        input="\n".join(asked),
        capture_output=True,
        text=True,
        check=False,
        cwd=models,
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    if done.returncode or len(answers) != len(asked):
        raise RuntimeError(f"the oracle answered {len(answers)} of {len(asked)} questions:\n{done.stderr[-3000:]}")
    lost = [a["words"] for a in answers if a.get("error") == "ModuleNotFoundError"]
    if lost:
        raise RuntimeError(f"the oracle lacks a stand-in, so its answers mean nothing: {lost[0]}")
    return answers


def ours(case: Case, release: str, models: Path) -> Verdict:
    """What Augury answers for that release."""
    question = ConfigQuestion(
        placed(case.given, models), placed(case.target, models), release, case.tp, case.max_model_len
    )
    answer = judge(question)
    if exit_code(answer, release) == REFUSED:
        return {"accepted": False, "words": _why(answer)}
    assert answer.config is not None
    found = answer.config
    return {
        "accepted": True,
        "method": found.method,
        "tokens": found.num_speculative_tokens,
        "slots": derived(found, release)["extra_slots"],
    }


def doctor(case: Case, release: str, models: Path) -> Verdict:
    """What `augury doctor` answers to the whole command: refused is what it calls an error."""
    flags = {"tensor_parallel_size": case.tp, "max_model_len": case.max_model_len, **(case.engine or {})}
    target, given = placed(case.target, models), json.dumps(placed(case.given, models))
    words = ["vllm", "serve", target, "--speculative-config", given]
    for name, value in flags.items():
        dashed = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{'' if value else 'no-'}{dashed}")
        elif value is not None:
            words += [f"--{dashed}", str(value)]
    found = [
        one for one in examine(shlex.join(words), asked=CheckedAgainst(release)).findings if one.severity == "error"
    ]
    return {"accepted": False, "words": f"{found[0].id}: {found[0].message}"} if found else {"accepted": True}


def _why(answer: CheckedConfig) -> str:
    return answer.error or next(f"{note.key}: {note.text}" for note in answer.notes if note.refused)
