"""Measure the speed-ups that pages state: `make figures` writes them to docs/figures.yml and says what has changed.

An entry with a `line` is read off that run: a set of prompts, a contender, and whether its speed is told as times
transformers (`to_baseline`) or plain decoding (`to_plain`). The others were measured elsewhere and stay. The tests then
name every page that still states an old figure.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

PAGE = Path(__file__).parents[2] / "docs" / "figures.yml"
#: Methods as they come: how much to draft is chosen every step, up to these numbers.
LOOK_UP = {"num_speculative_tokens": 11, "adaptive": True, "prompt_lookup_min": 2, "prompt_lookup_max": 4}
HEAD = {"num_speculative_tokens": 3, "adaptive": True}
CONFIGS: list[dict[str, Any]] = [
    {"method": "ngram", **LOOK_UP},
    {"method": "ngram_gpu", **LOOK_UP},
    {"method": "suffix", "suffix_decoding_max_cached_requests": 0},
    {"method": "eagle3", **HEAD},
    {"method": "eagle3", "parallel_drafting": True, **HEAD},
    {"method": "dflash", **HEAD},
]
PEERS = "transformers,augury," + ",".join(
    f"augury-{name}" for name in ("ngram", "ngram_gpu", "suffix", "eagle3", "p-eagle", "dflash")
)


def command(rounds: int) -> list[str]:
    """The bench behind all of them."""
    words = ["bench", "--batch", "1", "--prompts", "chat,edit", "--max-tokens", "64", "--rounds", str(rounds), "--json"]
    return [*words, "--peers", PEERS, *(word for one in CONFIGS for word in ("-sc", json.dumps(one)))]


def update(entries: list[dict[str, Any]], report: dict[str, Any]) -> list[str]:
    """Put what was measured into the entries; says what it has changed."""
    found = {(line["prompts"], line["contender"]): line for line in report["results"]}
    changes = []
    for entry in entries:
        if (line := entry.get("line")) is None:
            continue
        spread = found[line["prompts"], line["contender"]][line["times"]]
        says = f"{spread['median']:.2f}x"
        if says != entry["says"]:
            changes.append(f"{entry['of']}: {entry['says']} -> {says} ({', '.join(entry['pages'])})")
        entry["says"] = says
    return changes


def write(entries: list[dict[str, Any]]) -> None:
    """An entry a line, after the words at the top of the file."""
    words = [line for line in PAGE.read_text().splitlines() if line.startswith("#")]
    lines = [yaml.safe_dump(one, default_flow_style=True, sort_keys=False, width=1 << 16).strip() for one in entries]
    PAGE.write_text("\n".join([*words, *(f"- {line}" for line in lines)]) + "\n")


def main() -> None:
    """Run the bench, or read the JSON of one from a file."""
    if sys.argv[1:]:
        report = json.loads(Path(sys.argv[1]).read_text())
    else:
        made = subprocess.run([sys.executable, "-m", "augury", *command(3)], stdout=subprocess.PIPE, check=True)
        report = json.loads(made.stdout)
    entries = yaml.safe_load(PAGE.read_text())
    for change in update(entries, report):
        print(change)
    write(entries)
    print(f"other processes took {report['conditions']['disturbance']:.0%} of the machine meanwhile")


if __name__ == "__main__":
    main()
