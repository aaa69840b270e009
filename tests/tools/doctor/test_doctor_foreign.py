"""What only looks like vLLM's: others' speculative_config, places to be filled in, images with tags of their own."""

from __future__ import annotations

import pytest

from augury.tools.doctor.examine import examine
from augury.tools.doctor.found.find import find_commands
from augury.tools.doctor.found.release import image_release

TENSORRT = "model: m\nspeculative_config:\n  decoding_type: MTP\n  num_nextn_predict_layers: 3\n"
TEMPLATE = "slots:\n  speculative_config: {token: '--speculative-config', source: 'drafter[mtp].template'}\n"
LEFT_OUT = "slots:\n  speculative_config: omitted\n"


@pytest.mark.parametrize("text", [TENSORRT, TEMPLATE, LEFT_OUT])
def test_a_speculative_config_of_another_program_is_left_alone(text: str) -> None:
    assert not find_commands(text, "deploy.yaml")


@pytest.mark.parametrize(
    ("config", "finding"),
    [
        ("{metod: ngram, num_speculative_token: 3}", "key-unknown"),
        ("ngram", "json-broken"),
        ("{method: ngram}", "k-missing"),
    ],
)
def test_a_wrong_one_of_vllms_is_not(config: str, finding: str) -> None:
    said = [one.id for one in examine(f"model: m\nspeculative_config: {config}\n", "engine.yaml").findings]
    assert finding in said


def test_a_place_to_be_filled_in_is_no_broken_json() -> None:
    line = """vllm serve m --speculative-config '{"method": "eagle3", "model": %s, "num_speculative_tokens": 3}'"""
    assert [one.id for one in examine(line % "<your head>").findings] == ["json-has-variable"]
    assert [one.id for one in examine(line % "head").findings] == ["json-broken"]


def test_dynamos_worker_takes_vllms_arguments() -> None:
    config = """'{"method": "deepseek_mtp", "num_speculative_tokens": 1}'"""
    [command] = examine(
        f"python3 -m dynamo.vllm --model deepseek-ai/DeepSeek-V3 --speculative-config {config}"
    ).commands
    assert (command.program, command.target) == ("vllm serve", "deepseek-ai/DeepSeek-V3")
    assert [one.id for one in command.findings] == ["mtp-alias"]
    assert image_release("nvcr.io/nvidia/ai-dynamo/vllm-runtime:1.3.0") is None, "Dynamo's release, not vLLM's"
    assert image_release("registry.example/vllm-runtime:1.0.0") is None
    assert not find_commands("python3 -m dynamo.vllm.omni --model m", "run.sh")


def served(role: str, k: int, target: str = "Qwen/Qwen3.5-397B-A17B") -> str:
    config = f"""'{{"method": "mtp", "num_speculative_tokens": {k}}}'"""
    return f"""vllm serve {target} --kv-transfer-config '{{"kv_role": "{role}"}}' --speculative-config {config}\n"""


@pytest.mark.parametrize(
    ("servers", "told"),
    [
        ([("kv_producer", 1), ("kv_consumer", 3)], True),
        ([("kv_both", 1), ("kv_both", 3)], True),
        ([("kv_producer", 3), ("kv_consumer", 3)], False),
        ([("kv_producer", 1), ("kv_consumer", 1), ("kv_producer", 3), ("kv_consumer", 3)], False),  # two deployments
        ([("kv_both", 1), ("kv_both", 2), ("kv_both", 3)], False),  # nobody can tell which two belong together
        ([("kv_producer", 1), ("kv_producer", 3)], False),  # they do not hand anything to each other
    ],
)
def test_k_is_compared_where_two_servers_pair_up(servers: list[tuple[str, int]], told: bool) -> None:
    found = examine("".join(served(*one) for one in servers), "run.sh").findings
    assert ("disaggregated-k-differs" in [one.id for one in found]) is told


def test_k_of_another_target_is_not_compared() -> None:
    text = served("kv_producer", 1) + served("kv_consumer", 3, "Qwen/Qwen3-Next-80B-A3B-Instruct")
    assert "disaggregated-k-differs" not in [one.id for one in examine(text, "run.sh").findings]


def test_a_target_that_drafts_for_itself_is_no_drafter() -> None:
    inside = """vllm serve a/deepseek-v4-flash-dspark -sc '{"method": "dspark", "num_speculative_tokens": 4}'"""
    assert "drafter-served" not in [one.id for one in examine(inside).findings]
    assert "drafter-served" in [one.id for one in examine("vllm serve a/deepseek-v4-flash-dspark").findings]
