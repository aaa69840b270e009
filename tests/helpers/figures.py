"""Measure the speed-ups that pages state: `make figures` writes them to docs/figures.yml and says what has changed.

An entry with a `line` is read off this run: a set of prompts, a contender, and whether its speed is told as times
transformers (`to_baseline`, by `augury bench`) or plain decoding (`to_plain`, by engines that take turns step by step,
see racing.py). The others were measured elsewhere and stay. The tests then name every page that still states an old
figure.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from never_slower import prompt_sets
from racing import CLOCKS, Contender, race

from augury import LLM

PAGE = Path(__file__).parents[2] / "docs" / "figures.yml"
#: Methods as they come: how much to draft is chosen every step, up to these numbers.
NGRAM = {"method": "ngram", "num_speculative_tokens": 11, "prompt_lookup_min": 2, "prompt_lookup_max": 4}
EAGLE3 = {"method": "eagle3", "num_speculative_tokens": 3}
AUTO = {"adaptive": True}
SPECS: dict[str, Any] = {
    "ngram": NGRAM | AUTO,
    "suffix": {"method": "suffix", "suffix_decoding_max_cached_requests": 0},
    "eagle3": EAGLE3 | AUTO,
    "p-eagle": EAGLE3 | {"parallel_drafting": True} | AUTO,
    "dflash": {"method": "dflash", "num_speculative_tokens": 3} | AUTO,
    "hybrid": {"method": "hybrid", "drafters": [NGRAM, EAGLE3]} | AUTO,
}
TOKENS, ROUNDS = 64, 2
ROOM: dict[str, Any] = {"max_model_len": 1024, "max_num_seqs": 1}


def compared_with_transformers() -> dict[str, Any]:
    """What the bench says of plain decoding."""
    words = ["bench", "--batch", "1", "--prompts", "chat,edit", "--max-tokens", str(TOKENS), "--rounds", "3", "--json"]
    command = [sys.executable, "-m", "augury", *words, "--peers", "transformers,augury"]
    report: dict[str, Any] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    return report


def compared_with_plain() -> list[dict[str, Any]]:
    """Times plain decoding over all prompts, with the least and the most of a prompt, as the bench writes it."""
    plain, lines = LLM("default", **ROOM), []
    made = {name: LLM("default", weights_of=plain, speculative_config=spec, **ROOM) for name, spec in SPECS.items()}
    for name, (prompts, temperature) in prompt_sets(plain, 1).items():
        if name not in ("chat", "edit"):
            continue
        engines = {who: Contender(llm, CLOCKS["wall"]) for who, llm in {"plain": plain, **made}.items()}
        race(engines, prompts[-1:], temperature, TOKENS)  # to warm up; it is the last to be answered, too
        prompts = prompts * ROUNDS
        rounds = [race(engines, [prompt], temperature, TOKENS) for prompt in prompts]
        for who in made:
            ratios = sorted(spent["plain"] / spent[who] for spent in rounds)
            whole = sum(spent["plain"] for spent in rounds) / sum(spent[who] for spent in rounds)
            spread = {"median": whole, "low": ratios[0], "high": ratios[-1]}
            lines.append({"prompts": name, "contender": who, "to_plain": spread})
            print(f"{name}, {who}: {whole:.3f}x plain ({ratios[0]:.2f} to {ratios[-1]:.2f} by prompt)", flush=True)
    return lines


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
    """Run both, or read the JSON of an earlier run from a file."""
    if sys.argv[1:]:
        report = json.loads(Path(sys.argv[1]).read_text())
    else:
        lines = compared_with_plain()
        report = compared_with_transformers()
        report["results"] += lines
    entries = yaml.safe_load(PAGE.read_text())
    for change in update(entries, report):
        print(change)
    write(entries)
    print(f"other processes took {report['conditions']['disturbance']:.0%} of the machine in the bench's part")


if __name__ == "__main__":
    main()
