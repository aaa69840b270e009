"""Manifests as people write them: merged and extended services, dollars for compose, for Kubernetes and for a shell."""

import json

import pytest

from augury.config.errors import ConfigError
from augury.tools.doctor.examine import CheckedAgainst, Examination, examine
from augury.tools.doctor.fix import mended

GONE = json.dumps({"method": "ngram", "num_speculative_tokens": 5, "disable_by_batch_size": 4})
COMMON = "x-vllm: &vllm\n  image: vllm/vllm-openai:v0.28.0\n  environment: &env {KEPT: a}\n"
SERVICE = f"services:\n  a:\n    <<: %s\n    command: |\n      --model Qwen/Qwen3-8B --speculative-config '{GONE}'\n"
SHELL = """services:
  a:
    image: vllm/vllm-openai:v0.28.0
    entrypoint: [sh, -c]
    environment: %s
    command: ['vllm serve $$MODEL -sc "{\\"method\\": \\"$${METHOD}\\", \\"num_speculative_tokens\\": 3}"']
"""
POD = """apiVersion: v1
kind: Pod
spec:
  containers:
  - image: vllm/vllm-openai:v0.26.0
    env:
    - {name: METHOD, value: deepseek_mtp}
    - {name: SPEC, value: '{"method": "$(METHOD)", "num_speculative_tokens": 1}'}
    - {name: MODEL, value: meta-llama/Llama-3.1-8B}
"""


def ids(found: Examination) -> list[str]:
    """What was found, without notes."""
    return [one.id for one in found.findings if one.severity != "note"]


@pytest.mark.parametrize("source", ["*vllm", "[*vllm]", "[{ports: []}, *vllm]"])
def test_a_service_has_what_it_merges(source: str) -> None:
    text = COMMON + SERVICE % source
    found = examine(text, "compose.yaml")
    assert [(one.release, one.named_by) for one in found.commands] == [("0.28.0", "file")]
    assert ids(found) == ["key-gone"]
    assert "key-gone" not in ids(mended(found, CheckedAgainst()))


def test_own_keys_count_more_than_merged_ones() -> None:
    text = COMMON + SERVICE.replace("    command", "    image: vllm/vllm-openai:v0.30.0\n    command") % "*vllm"
    assert [one.release for one in examine(text, "compose.yaml").commands] == ["0.30.0"]
    first = COMMON + SERVICE % "[{image: 'vllm/vllm-openai:v0.29.0'}, *vllm]"
    assert [one.release for one in examine(first, "compose.yaml").commands] == ["0.29.0"], "the first of a list counts"


def test_a_command_that_two_services_share_is_one() -> None:
    text = COMMON + SERVICE.replace("  a:", "  a: &a") % "*vllm" + "  b:\n    <<: *a\n    ports: [8001]\n"
    assert len(examine(text, "compose.yaml").commands) == 1
    other = text + "    image: vllm/vllm-openai:v0.30.0\n"
    assert [one.release for one in examine(other, "compose.yaml").commands] == ["0.28.0", "0.30.0"]


@pytest.mark.parametrize("link", ["{service: base}", "base"])
def test_a_service_has_the_image_of_the_one_it_extends(link: str) -> None:
    text = f"services:\n  base: {{image: 'vllm/vllm-openai:v0.28.0'}}\n  a:\n    extends: {link}\n"
    text += f"    command: [--model, m, -sc, '{GONE}']\n"
    assert [one.release for one in examine(text, "compose.yaml").commands] == ["0.28.0"]
    round_about = text.replace("base: {", "base: {extends: a, ")
    assert ids(examine(round_about, "compose.yaml")) == ["key-gone"], "the two run one command"


def test_merged_keys_of_a_configuration_are_keys() -> None:
    text = "s: &s {method: ngram, num_speculative_tokens: 4}\nmodel: m\nspeculative-config:\n  <<: *s\n  "
    assert ids(examine(f"{text}prompt_lookup_max: 4\n", "engine.yaml")) == []
    assert ids(examine(f"{text}num_speculative_tokens: 5\n", "engine.yaml")) == [], "one key, not two"
    found = examine(text.replace("4}", "4, disable_mqa_scorer: true}") + "prompt_lookup_max: 4\n", "engine.yaml")
    assert ids(found) == ["key-gone"]
    assert mended(found, CheckedAgainst()).text == found.text, (
        "what stands around a merged key is not its own mapping's"
    )


def test_merges_without_end_are_read_or_refused() -> None:
    ids(examine("a: &a\n  <<: *a\n  command: vllm serve m\n", "a.yaml"))
    doubled = "".join(f"z{i}: &z{i}\n  <<: [*z{i - 1}, *z{i - 1}]\n" for i in range(1, 60))
    with pytest.raises(ConfigError, match="letters"):
        examine(f"z0: &z0 {{a: 1}}\n{doubled}m:\n  <<: *z59\n  command: vllm serve m\n", "a.yaml")


VALUES = [
    "{MODEL: meta-llama/Llama-3.1-8B, METHOD: deepseek_mtp}",
    "[MODEL=meta-llama/Llama-3.1-8B, METHOD=deepseek_mtp]",
]


@pytest.mark.parametrize("values", VALUES)
def test_two_dollars_in_compose_are_one_for_the_shell(values: str) -> None:
    found = examine(SHELL % values, "compose.yaml")
    assert {"mtp-alias", "mtp-target-without"} <= set(ids(found)), "both variables are the service's own"
    assert "nothing in this file sets" not in str(found.commands)
    assert "mtp-alias" not in ids(mended(found, CheckedAgainst()))


def test_one_dollar_in_compose_is_not_the_containers() -> None:
    text = SHELL.replace("$$", "$") % VALUES[0]
    assert "json-has-variable" in [one.id for one in examine(text, "compose.yaml").findings]
    default = SHELL.replace("$${METHOD}", "${METHOD:-deepseek_mtp}") % "{MODEL: zai-org/GLM-4.6}"
    assert "mtp-alias" in ids(examine(default, "compose.yaml"))


def test_a_literal_dollar_is_written_as_two_again() -> None:
    written = '{"method": "eagle3", "model": "/m/a$$b", "num_speculative_tokens": 3, "draft_tensor_parallel_size": 3}'
    text = f"services:\n  a:\n    image: vllm/vllm-openai:v0.28.0\n    command: [--model, m, -sc, '{written}']\n"
    found = examine(text, "compose.yaml")
    assert ids(found) == ["draft-tp"]
    assert mended(found, CheckedAgainst()).text == text.replace('size": 3', 'size": 1')


@pytest.mark.parametrize(
    "args",
    [
        "[--model=$(MODEL), --speculative-config=$(SPEC)]",
        """[--model, $(MODEL), -sc, '{"method": "$(METHOD)", "num_speculative_tokens": 1}']""",
    ],
)
def test_kubernetes_fills_in_parts_of_a_word(args: str) -> None:
    found = examine(f"{POD}    args: {args}\n", "pod.yaml")
    assert set(ids(found)) == {"mtp-alias", "mtp-target-without"}
    assert "mtp-alias" not in ids(mended(found, CheckedAgainst()))


def test_a_shell_in_a_container_sees_its_variables() -> None:
    found = examine(f"{POD}    command: [bash, -c, 'exec vllm serve $MODEL -sc \"$SPEC\"']\n", "pod.yaml")
    assert set(ids(found)) == {"mtp-alias", "mtp-target-without"}
    assert "mtp-alias" not in ids(mended(found, CheckedAgainst()))


@pytest.mark.parametrize(
    "written",
    [
        'vllm serve $M -sc "{\\"method\\": \\"$METHOD\\", \\"num_speculative_tokens\\": 3}"',
        'vllm serve $M -sc "{\\"method\\": \\"ngram\\", \\"num_speculative_tokens\\": \\"${K}\\"}"',
        "vllm serve $M --spec-method $METHOD --spec-tokens $K --spec-model $DRAFT",
        "vllm serve $M -tp $TP -sc.method ngram -sc.num_speculative_tokens ${K}",
        "vllm serve $M --spec-method `cat method` --spec-tokens $(cat k)",
        """vllm serve $M -sc '{"method": "<your method>", "num_speculative_tokens": 3}'""",
        "model: m\nspeculative-config:\n  method: ${METHOD}\n  num_speculative_tokens: {{ .Values.k }}\n",
        "args:\n- --spec-method={{ .Values.method }}\n- --spec-tokens={{ .Values.k }}\n",
    ],
)
def test_a_value_that_is_filled_in_elsewhere_is_not_wrong(written: str) -> None:
    found = examine(written)
    assert ids(found) == []
    assert "json-has-variable" in [one.id for one in found.findings]
    assert any(one.how == "lint the finished command as well" for one in found.commands[0].unchecked)


def test_what_no_shell_fills_in_is_the_value() -> None:
    found = examine("""vllm serve m -sc '{"method": "$METHOD", "num_speculative_tokens": 3}'""")
    assert ids(found) == ["method-unknown"], "single quotes keep the dollar"


def test_a_drafter_that_is_not_known_says_nothing_of_the_method() -> None:
    line = 'vllm serve m --speculative-config "{\\"model\\": \\"$DRAFT\\", \\"num_speculative_tokens\\": 3}"'
    assert ids(examine(line, "", CheckedAgainst("0.13.0"))) == [], (
        "it need not be a draft model, which that release refuses"
    )
    head = line.replace("{", '{\\"method\\": \\"eagle3\\", \\"draft_tensor_parallel_size\\": 3, ')
    assert ids(examine(head)) == ["draft-tp"], "the rest is judged"


GUARDED = """services:
  a:
    image: ${IMAGE:-vllm/vllm-openai:v0.27.1}
    environment: ["SPEC_N=${SPEC_N:-}"]
    entrypoint:
    - bash
    - -c
    - |
      _n="$${SPEC_N:-$${DEPTH:-3}}"
      case "$${SPEC:-}" in off|0) _n=0 ;; esac
      [ -n "$$LOW" ] && _n=0
      ARGS=()
      if [ "$$_n" -gt 0 ]; then
        ARGS=(--speculative-config "{\\"method\\": \\"mtp\\", \\"num_speculative_tokens\\": $$_n}")
      fi
      exec vllm serve $${EAGER:+--enforce-eager} "$$@" "$${ARGS[@]}"
    - --
    command: [--model, zai-org/GLM-4.6, --pipeline-parallel-size, "${PP:-2}"]
"""


def test_a_script_in_a_manifest_is_read_with_its_arguments_and_defaults() -> None:
    """What `case`, `if` and `&&` set is what may be; what was set before them is what is, where it says anything."""
    [command] = examine(GUARDED, "compose.yaml").commands
    assert command.keys["method"] == "mtp" and command.keys["num_speculative_tokens"] == 3
    assert command.target == "zai-org/GLM-4.6" and command.release == "0.27.1"
    assert [one.id for one in command.findings] == ["pipeline-mtp"], "the arguments behind the script are its own"
    assert not any("handed on" in one.what for one in command.unchecked)


def test_a_branch_counts_where_nothing_was_set_before() -> None:
    line = f"if x; then SPEC='{GONE}'; fi\nvllm serve m --speculative-config \"$SPEC\"\n"
    assert ids(examine(line, "run.sh")) == ["key-gone"]
    assert ids(examine(f"SPEC=''\n{line}", "run.sh")) == ["key-gone"]
    assert ids(examine(f"""SPEC='{{"method": "suffix"}}'\n{line}""", "run.sh")) == []


@pytest.mark.parametrize(
    "program",
    [
        "vllm run-batch -i a -o b --model m",
        "python -m vllm.entrypoints.openai.run_batch --model m",
        "python3 -m vllm.entrypoints.cli.main serve m",
    ],
)
def test_other_programs_with_the_same_arguments(program: str) -> None:
    assert ids(examine(f"{program} --speculative-config '{GONE}'")) == ["key-gone"]


def test_a_manifest_in_json_is_read_as_one_in_yaml() -> None:
    pod = {"image": "vllm/vllm-openai:v0.26.0", "args": ["--model", "m", "--speculative-config", GONE]}
    found = examine(json.dumps({"kind": "Pod", "spec": {"containers": [pod]}}), "pod.json")
    assert ids(found) == ["key-gone"] and found.commands[0].release == "0.26.0"
    assert "key-gone" not in ids(mended(found, CheckedAgainst()))
    assert not examine('{"kind": "Pod"}', "pod.json").commands


@pytest.mark.parametrize("dash", ["\u2013", "\u2014", "\u2212\u2212"])
def test_a_dash_of_a_word_processor_is_no_flag(dash: str) -> None:
    right = 'vllm serve m --speculative-config \'{"method": "suffix"}\' --port 80'
    found = examine(right.replace(" --", f" {dash}"))
    assert ids(found) == ["flag-misspelt", "flag-misspelt"]
    assert mended(found, CheckedAgainst()).text == right
    assert ids(examine("vllm serve m --port 80 \u2014 x")) == []
