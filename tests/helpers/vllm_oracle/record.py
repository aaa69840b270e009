"""The class's own words on a sample of the cases, kept in the repository so that tests need no wheel."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from zlib import crc32

from vllm_oracle.sides import Verdict

FILE = Path(__file__).parents[2] / "recorded" / "vllm_class.json"
ONE_IN = 5  # of the cases is kept
MUST = ("size/", "context/", "word/", "engine/", "key/attention_backend", "key/index_share", "drafter/head-eagle3")


def kept(name: str) -> bool:
    """Whether a case is in the sample: by its name, so that new cases do not move the others."""
    return name.startswith(MUST) or crc32(name.encode()) % ONE_IN == 0


def write(release: str, answers: dict[str, Verdict], models: Path) -> None:
    """Renew the record."""
    sample = {name: _short(answer, models) for name, answer in answers.items() if kept(name)}
    lines = [f"  {json.dumps(name)}: {json.dumps(answer)}" for name, answer in sample.items()]
    FILE.write_text(f'{{"release": "{release}", "cases": {{\n' + ",\n".join(lines) + "\n}}\n")


def _short(answer: Verdict, models: Path) -> Verdict:
    if answer["accepted"]:
        return answer
    return {"accepted": False, "by": answer["by"], "words": answer["words"].replace(f"{models}/", "@")[:70]}


def read() -> dict[str, Any]:
    """The record."""
    found: dict[str, Any] = json.loads(FILE.read_text())
    return found
