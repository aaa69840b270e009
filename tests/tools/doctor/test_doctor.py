"""The doctor: what it says of real commands, where it points, and what it mends."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from doctor_cases import BRIEF, MODELS, REAL, Case
from doctor_pairs import PAIRS

from augury.config.facts import ModelFacts, read_facts
from augury.tools.doctor.examine import CheckedAgainst, Examination, examine
from augury.tools.doctor.fix import mended, unified
from augury.tools.knowledge.base import knowledge


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directories with the files of MODELS."""
    root = tmp_path_factory.mktemp("models")
    for name, files in MODELS.items():
        (root / name).mkdir()
        (root / name / "config.json").write_text(json.dumps(files["config"]))
        if "vocab" in files:
            (root / name / "tokenizer.json").write_text(json.dumps({"model": {"vocab": files["vocab"]}}))
        if "generation" in files:
            (root / name / "generation_config.json").write_text(json.dumps(files["generation"]))
    return root


def asked(case: Case, models: Path) -> CheckedAgainst:
    """What a case is held against."""

    def facts(name: str | None) -> ModelFacts | None:
        return read_facts(str(models / name)) if name else None

    return CheckedAgainst(case.version, facts(case.target), facts(case.drafter))


def ids(examination: Examination) -> list[str]:
    return sorted(finding.id for finding in examination.findings)


ALL = [*BRIEF, *REAL, *(case for pair in PAIRS for case in (pair.bad, pair.good))]


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.text[:60])
def test_every_case_says_what_is_written_down_and_nothing_else(case: Case, models: Path) -> None:
    found = examine(case.text, case.name, asked(case, models))
    assert found.commands, "no command found"
    assert ids(found) == sorted(case.expect), [(f.id, f.message) for f in found.findings]


def test_there_are_enough_commands() -> None:
    assert len(REAL) >= 60 and len({case.text for case in ALL}) > 200


def test_the_documents_raise_no_alarm_for_their_own_release(models: Path) -> None:
    for case in BRIEF:
        loud = [f for f in examine(case.text, case.name, asked(case, models)).findings if f.severity != "note"]
        assert not loud, (case.text, loud)


def test_every_entry_has_a_command_that_shows_it_and_one_that_does_not() -> None:
    linted = {entry.id for entry in knowledge().values() if entry.linted}
    assert {pair.id for pair in PAIRS} == linted
    for pair in PAIRS:
        assert pair.id in pair.bad.expect and pair.id not in pair.good.expect, pair.id


def test_findings_point_at_the_argument_at_fault(models: Path) -> None:
    """Whatever the quoting around it, the span is the key and its value as the file spells them."""
    plain = '{"method": "mtp", "prompt_lookup_max": 4, "num_speculative_tokens": 1}'
    escaped = plain.replace('"', '\\"')
    lines = plain.replace(", ", ",\n      ")
    pod = "kind: Pod\nspec:\n  containers:\n  - image: vllm/vllm-openai\n    args:\n    - m\n    - -sc\n    - >-\n"
    spelt = {
        "run.sh": f"vllm serve m -sc '{plain}'",
        "double.sh": f'vllm serve m -sc "{escaped}"',
        "variable.sh": f"C='{plain}'\nvllm serve m -sc \"$C\" ",
        "Dockerfile": f'FROM vllm/vllm-openai\nCMD ["m", "-sc", "{escaped}"]',
        "a.yaml": f"{pod}      {lines}\n",
        "b.yaml": f"services:\n  é:\n    image: vllm/vllm-openai\n    command: '--model m -sc ''{plain}'''\n",
        "c.yaml": "model: m\nspeculative-config:\n  method: mtp\n  prompt_lookup_max: 4\n  num_speculative_tokens: 1\n",
        "d.service": f"[Service]\nExecStart=vllm serve m \\\n  -sc '{plain}'\n",
        "e.json": lines,
    }
    for name, text in spelt.items():
        found = examine(text, name)
        [finding] = [f for f in found.findings if f.id == "key-unused"]
        span = text[finding.start : finding.end].replace("\\", "").replace('"', "")
        assert span == "prompt_lookup_max: 4", (name, span)
        line, column = found.place(finding.start)
        assert text.split("\n")[line - 1][column - 1 :].lstrip("\\").lstrip('"').startswith("prompt"), name
        after = mended(found, CheckedAgainst())
        assert "prompt_lookup_max" not in after.text and len(after.commands) == 1, (name, after.text)
        assert "key-unused" not in ids(after)


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.text[:60])
def test_mending_leaves_nothing_mendable_and_stops(case: Case, models: Path) -> None:
    against = asked(case, models)
    after = mended(examine(case.text, case.name, against), against)
    again = examine(after.text, case.name, against)
    assert ids(again) == ids(after)
    assert not [f for f in again.findings if f.edits], [(f.id, after.text) for f in again.findings if f.edits]
    assert mended(again, against).text == after.text


HEAD = '"method": "eagle3", "model": "a/eagle3", "num_speculative_tokens": 3'
MISSPELT = HEAD.replace("speculative", "speculativ")
MTP = '{"method": "mtp", "num_speculative_tokens": 1}'
TIGHT = '"method":"mtp","num_speculative_tokens":1,"rejection_sample_method"'
SUFFIX = """-sc '{"method": "suffix"}'"""
MENDED = [
    (f"vllm serve m -sc {MTP} --port 80", None, f"vllm serve m -sc '{MTP}' --port 80"),
    ("vllm serve m -sc ‘{“method”: “mtp”, “num_speculative_tokens”: 1}’", None, f"vllm serve m -sc '{MTP}'"),
    (
        f"vllm serve m -sc '{{{HEAD}, \"disable_by_batch_size\": 16}}'",
        None,
        f"vllm serve m -sc '{{{HEAD}, \"num_speculative_tokens_per_batch_size\": [[1, 16, 3], [17, 17, 0]]}}'",
    ),
    (
        f"vllm serve m -sc '{{{TIGHT}:\"probabilistic\"}}'",
        None,
        f'vllm serve m -sc \'{{{TIGHT}:"standard","draft_sample_method":"probabilistic"}}\'',
    ),
    (
        "vllm serve m --speculative-model org/small --num-speculative-tokens 5 -tp 2",
        None,
        """vllm serve m --speculative-config '{"model": "org/small", "num_speculative_tokens": 5}' -tp 2""",
    ),
    (f"vllm serve m \\\n  --async-scheduling \\\n  {SUFFIX}\n", None, f"vllm serve m \\\n  {SUFFIX}\n"),
    (f"vllm serve m \\\n  {SUFFIX} \\\n  --async-scheduling\n", None, f"vllm serve m \\\n  {SUFFIX}\n"),
    (f"vllm serve m -sc '{{{MISSPELT}}}'", None, f"vllm serve m -sc '{{{HEAD}}}'"),
    (f"vllm serve m -sc '{MTP}'", "0.12", f"vllm serve m --speculative-config '{MTP}'"),
    ("vllm serve m --spec-method deepseek_mtp --spec-tokens 1", None, "vllm serve m --spec-method mtp --spec-tokens 1"),
]


@pytest.mark.parametrize(("text", "release", "expected"), MENDED)
def test_mended_commands_read_as_a_person_would_write_them(text: str, release: str | None, expected: str) -> None:
    against = CheckedAgainst(release)
    assert mended(examine(text, "", against), against).text == expected


def test_mending_a_file_keeps_every_other_byte() -> None:
    text = (
        "\ufeff# déployé le 3 mai\r\nservices:\r\n  llm:   # ours\r\n    image: vllm/vllm-openai:v0.32.0\r\n"
        "    command:\r\n    - --model=m\r\n    - --speculative-config\r\n"
        '    - "{\\"method\\": \\"deepseek_mtp\\", \\"num_speculative_tokens\\": 1}"   # one layer\r\n\r\n'
    )
    after = mended(examine(text, "compose.yaml"), CheckedAgainst())
    assert after.text == text.replace("deepseek_mtp", "mtp")
    diff = unified(examine(text, "compose.yaml"), after)
    assert [line[:5] for line in diff.splitlines() if line[:1] in "+-"] == ["--- a", "+++ b", "-    ", "+    "]


def test_words_are_split_as_a_shell_splits_them() -> None:
    from augury.tools.doctor.found.mapped import Mapped
    from augury.tools.doctor.found.shell_words import ShellReader

    for line in ('a \'b c\' "d\\"e" f\\ g', "x=1 'it'\\''s' \"a'b\"", '--flag="{\\"a\\": 1}" z', "a # b"):
        [simple] = ShellReader(Mapped.whole("run " + line)).commands()
        assert [word.text for word in simple.words] == shlex.split("run " + line, comments=True)
    [joined, after] = ShellReader(Mapped.whole("a\\\nb c; A=1 d e=2 | f")).commands()[:2]
    assert [word.text for word in joined.words] == ["ab", "c"]
    assert [word.text for word in after.words] == ["d", "e=2"] and after.environment["A"].text == "1"


def test_releases_come_from_the_flag_then_the_file_then_the_newest() -> None:
    text = "FROM vllm/vllm-openai:v0.12.0\nCMD --model m"
    [command] = examine(text, "Dockerfile").commands
    assert (command.release, command.named_by) == ("0.12.0", "file")
    [command] = examine(text, "Dockerfile", CheckedAgainst("0.20")).commands
    assert (command.release, command.named_by) == ("0.20", "you")
    [command] = examine("vllm serve m").commands
    assert (command.release, command.named_by) == ("0.32", "nobody")
    [command] = examine("docker run vllm/vllm-openai:v0.6.3 --model m").commands
    assert command.release == "0.8.2"


def test_several_commands_are_told_apart() -> None:
    spec: dict[str, Any] = {"method": "mtp", "num_speculative_tokens": 1, "prompt_lookup_max": 3}
    text = f"vllm serve a -sc '{json.dumps(spec)}'\necho x\nvllm serve b -sc '{json.dumps(spec)}'\n"
    found = examine(text)
    assert [found.place(f.start)[0] for f in found.findings] == [1, 3]
    assert mended(found, CheckedAgainst()).text.count("prompt_lookup_max") == 0
