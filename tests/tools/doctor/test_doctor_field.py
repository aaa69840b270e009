"""The doctor on commands from the field, and on what they taught it: releases of images, arrays, variables, units."""

from __future__ import annotations

from pathlib import Path

import pytest
from doctor_cases import Case
from doctor_field import FIELD
from typer.testing import CliRunner

from augury.cli import app
from augury.tools.doctor.examine import CheckedAgainst, examine
from augury.tools.doctor.fix import mended
from augury.tools.doctor.found.release import image_release, installed_release

HEAD = '{"method":"deepseek_mtp","num_speculative_tokens":1}'


@pytest.mark.parametrize("case", FIELD, ids=lambda case: case.text[:50])
def test_errors_and_warnings_are_those_written_down(case: Case) -> None:
    found = examine(case.text, case.name, CheckedAgainst(case.version))
    assert found.commands, "no command found"
    assert {f.id for f in found.findings if f.severity != "note"} == set(case.expect)


@pytest.mark.parametrize(
    ("image", "release"),
    [
        ("vllm/vllm-openai:v0.12.0", "0.12.0"),
        ("rocm/vllm:rocm7.0.0_vllm_0.10.2_20251006", "0.10.2"),
        ("quay.io/ascend/vllm-ascend:v0.11.0rc1", "0.11.0rc1"),
        ("nvcr.io/nvidia/vllm:25.09-py3", None),
        ("lmcache/vllm-openai:v0.3.7", None),
        ("vllm/vllm-openai:latest", None),
    ],
)
def test_which_release_an_image_means(image: str, release: str | None) -> None:
    assert image_release(image) == release
    assert (image_release(image) or installed_release("RUN pip install vllm==0.11.2")) == (release or "0.11.2")


def test_a_chart_says_its_image_in_two_parts() -> None:
    values = f"engine:\n  repository: vllm/vllm-openai\n  tag: v0.27.0\n  extraArgs: ['-sc', '{HEAD}']\n"
    assert [c.release for c in examine(values, "values.yaml").commands] == ["0.27.0"]
    two = values + "other:\n  repository: vllm/vllm-openai\n  tag: v0.20.0\n"
    assert [c.named_by for c in examine(two, "values.yaml").commands] == ["nobody"], "nobody can tell which"


ARRAYS = [
    f"ARGS=(\n  -tp 8  # all\n  --speculative-config '{HEAD}'\n)\nvllm serve a/b \"${{ARGS[@]}}\"\n",
    f"ARGS=(-tp 8)\nARGS+=(--speculative-config '{HEAD}')\nvllm serve a/b ${{ARGS[@]}}\n",
    f"A=()\nif [ x ]; then A+=(--speculative-config '{HEAD}'); fi\nvllm serve a/b \"${{A[@]}}\"\n",
]


@pytest.mark.parametrize("script", ARRAYS)
def test_arrays_are_read_and_mended_where_they_stand(script: str) -> None:
    found = examine(script, "run.sh")
    assert "mtp-alias" in [f.id for f in found.findings]
    assert mended(found, CheckedAgainst()).text == script.replace("deepseek_mtp", "mtp")


def test_kubernetes_fills_in_its_own_variables() -> None:
    pod = "kind: Pod\nspec:\n  containers:\n  - image: vllm/vllm-openai:v0.26.0\n    env: [{name: SPEC, value: '%s'}]\n"
    pod = pod % HEAD + '    args: ["--model", "a/b", "--speculative-config", "$(SPEC)"]\n'
    found = examine(pod, "pod.yaml")
    assert "mtp-alias" in [f.id for f in found.findings]
    assert mended(found, CheckedAgainst()).text == pod.replace("deepseek_mtp", "mtp")
    for unknown in ("$(OTHER)", "${OTHER}", "{{ .Values.spec }}"):
        said = [f.id for f in examine(pod.replace("$(SPEC)", unknown), "pod.yaml").findings]
        assert said == ["json-has-variable"], unknown


def test_a_default_counts_where_nothing_sets_the_variable() -> None:
    line = f"vllm serve ${{MODEL:-meta-llama/Llama-3.1-8B}} -sc '{HEAD}'"
    assert "mtp-target-without" in [f.id for f in examine(line).findings]
    assert "mtp-target-without" not in [f.id for f in examine(f"MODEL=zai-org/GLM-4.6\n{line}").findings]


def test_a_file_that_is_not_read_is_told(tmp_path: Path) -> None:
    """Terraform's language is not: that nothing was found must not look like a clean bill of health."""
    path = tmp_path / "main.tf"
    path.write_text('args = ["vllm", "serve", "a/b", "--speculative-config", "{}"]')
    done = CliRunner().invoke(app, ["doctor", str(path)])
    assert done.exit_code == 2 and "no `vllm serve`" in done.stderr
