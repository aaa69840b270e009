"""The doctor on names: where it finds them, whom a request goes to, and what a target's name tells."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from augury.config.facts import read_facts
from augury.config.versions import version
from augury.tools.doctor.examine import CheckedAgainst, Examination, examine
from augury.tools.doctor.fix import mended
from augury.tools.doctor.target_names import name_facts, told_by

SPECULATES = 'speculative_config={"method": "eagle3", "model": "a/eagle3", "num_speculative_tokens": 3}'
HEAD = """{"method": "eagle3", "model": "a/eagle3", "num_speculative_tokens": 3}"""


def lines(examination: Examination, name: str) -> list[int]:
    return [examination.place(found.start)[0] for found in examination.findings if found.id == name]


def look(*program: str, release: str = "0.32") -> Examination:
    return examine(
        "\n".join(["from vllm import LLM, SamplingParams", *program]) + "\n", "run.py", CheckedAgainst(release)
    )


def test_each_refused_parameter_is_found_at_its_own_line() -> None:
    found = look(
        f"llm = LLM('m', {SPECULATES})",
        "params = SamplingParams(",
        "    temperature=0.7,",
        "    min_p=0.05,",
        "    logit_bias={token: 2.0 for token in wanted},",
        ")",
        "llm.generate('Hello', params)",
    )
    assert lines(found, "sampling-request-refused") == [5, 6]
    spans = [found.text[f.start : f.end] for f in found.findings]
    assert spans == ["min_p=0.05", "logit_bias={token: 2.0 for token in wanted}"]


def test_a_request_is_held_against_the_engine_it_goes_to() -> None:
    plain, fast = "plain = LLM('m')", f"fast = LLM('m', {SPECULATES})"
    own = "params = SamplingParams(min_p=0.1)"
    assert not look(plain, fast, own, "plain.generate('a', params)").findings
    assert lines(look(plain, fast, own, "fast.generate('a', sampling_params=params)"), "sampling-request-refused") == [
        4
    ]
    assert lines(look(plain, fast, own, "fast.chat(talk, [params])"), "sampling-request-refused") == [4]
    both = look(plain, fast, own, "plain.generate('a', params)", "fast.generate('a', params)")
    assert lines(both, "sampling-request-refused") == [4]
    assert lines(look(plain, fast, own, "run(params)"), "sampling-request-refused") == [4]  # nobody can tell whose


@pytest.mark.parametrize("value", ["0", "1e-6", "args.min_p", "float(x)", "None"])
def test_what_may_be_nothing_is_no_fault(value: str) -> None:
    assert not look(f"llm = LLM('m', {SPECULATES})", f"llm.generate('a', SamplingParams(min_p={value}))").findings
    assert not look(f"llm = LLM('m', {SPECULATES})", "SamplingParams(min_tokens=int(x))", release="0.24").findings


@pytest.mark.parametrize(
    ("name", "text", "after"),
    [
        ("run.sh", f"vllm serve m --attention-backend=flash-attn -sc '{HEAD}'", "--attention-backend=FLASH_ATTN"),
        ("run.sh", f"vllm serve m --attention-backend 'flash-attn' -sc '{HEAD}'", "--attention-backend FLASH_ATTN"),
        ("a.yaml", f"model: m\nattention-backend: flash-attn\nspeculative-config: {HEAD}\n", ': "FLASH_ATTN"\n'),
        ("a.py", f"from vllm import LLM\nLLM('m', attention_backend='flash-attn', {SPECULATES})\n", '="FLASH_ATTN", '),
    ],
)
def test_a_dash_in_a_back_end_is_mended_where_it_stands(name: str, text: str, after: str) -> None:
    found = examine(text, name)
    assert [f.id for f in found.findings if f.severity == "error"] == ["backend-misspelt"]
    fixed = mended(found, CheckedAgainst())
    assert after in fixed.text and "flash-attn" not in fixed.text
    assert not [f for f in fixed.findings if f.severity == "error"]


def test_the_variable_counts_where_no_flag_is_given() -> None:
    command = f"VLLM_ATTENTION_BACKEND=TREE_ATTN vllm serve m --speculative-config '{HEAD}'"
    [found] = [f for f in examine(command).findings if f.id == "backend-gone"]
    assert command[found.start : found.end] == "VLLM_ATTENTION_BACKEND=TREE_ATTN"
    assert not [f for f in examine(f"{command} --attention-backend auto").findings if f.id == "backend-gone"]


@pytest.mark.parametrize("name", ["ROCM_AITER_FA", "cutlass_mla", "FLASHMLA", "flex_attention", "auto", "$BACKEND"])
def test_back_ends_that_pass_without_a_word(name: str) -> None:
    assert not examine(f"vllm serve m --attention-backend {name} -sc '{HEAD}'").findings


def test_the_drafters_own_back_end_is_the_one_that_counts_for_dflash() -> None:
    keys = '"method": "dflash", "model": "org/d", "num_speculative_tokens": 15'
    mixed = f"""vllm serve m --attention-backend FLASHINFER -sc '{{{keys}, "attention_backend": "FLASH_ATTN"}}'"""
    said = [f.id for f in examine(mixed, "", CheckedAgainst("0.22")).findings]
    assert "dflash-attention-backend" not in said
    swapped = mixed.replace("FLASHINFER", "X").replace("FLASH_ATTN", "FLASHINFER").replace("X", "FLASH_ATTN")
    assert "dflash-attention-backend" in [f.id for f in examine(swapped, "", CheckedAgainst("0.22")).findings]


@pytest.mark.parametrize(
    ("name", "family", "mtp"),
    [
        ("meta-llama/Llama-3.1-8B", "Llama", "none"),
        ("meta-llama/Meta-Llama-3-70B-Instruct", "Llama", "none"),
        ("/models/Llama-3.3-70B-Instruct/", "Llama", "none"),
        ("deepseek-ai/DeepSeek-R1", "DeepSeek V3 and R1", "own"),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-70B", "a distillation of DeepSeek-R1", "none"),
        ("deepseek-ai/DeepSeek-R1-0528-Qwen3-8B", "a distillation of DeepSeek-R1", "none"),
        ("deepseek-ai/DeepSeek-R1-0528", "DeepSeek V3 and R1", "own"),
        ("deepseek-ai/DeepSeek-V3.2-Exp", "DeepSeek V3 and R1", "own"),
        ("Qwen/Qwen3-8B", "Qwen3", "none"),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", "Qwen3-Next", "own"),
        ("Qwen/Qwen3.5-35B-A3B", "Qwen3.5", "own"),
        ("zai-org/GLM-4.5-Air", "GLM-4.5 and later", "own"),
        ("THUDM/GLM-4-9B-0414", "GLM-4", "none"),
        ("moonshotai/Kimi-K2-Instruct", "Kimi K2", "none"),
        ("moonshotai/Kimi-K3", "Kimi K3", "own"),
        ("openai/gpt-oss-120b", "gpt-oss", "none"),
        ("google/gemma-4-31B-it", "Gemma 4", "assistant"),
    ],
)
def test_what_a_name_tells(name: str, family: str, mtp: str) -> None:
    told = told_by(name)
    assert told is not None and (told.family, told.mtp) == (family, mtp)


@pytest.mark.parametrize("name", ["acme/qwen3.9-8b", "acme/llama-9", "acme/glm-4.9", "acme/x"])
def test_a_name_that_is_not_known_is_not_guessed(name: str) -> None:
    assert told_by(name) is None and name_facts(name, version("0.32")) == {"named_mtp": "unknown"}


@pytest.mark.parametrize("name", [None, "m", "<target>", "$MODEL/x", "{{ .Values.model }}/x"])
def test_stand_ins_are_no_names(name: str | None) -> None:
    assert name_facts(name, version("0.32")) == {}


K_ALONE = """vllm serve {} --speculative-config '{{"num_speculative_tokens": 1}}'"""


@pytest.mark.parametrize(
    ("target", "release", "said"),
    [
        ("deepseek-ai/DeepSeek-R1", "0.8.5", []),
        ("deepseek-ai/DeepSeek-R1", "0.9.2", []),
        ("deepseek-ai/DeepSeek-R1", "0.11.0", ["drafter-missing"]),
        ("XiaomiMiMo/MiMo-7B-RL", "0.8.5", ["drafter-missing", "target-too-new"]),
        ("XiaomiMiMo/MiMo-7B-RL", "0.10.2", []),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", "0.10.2", []),
        ("zai-org/GLM-4.5", "0.10.2", ["drafter-missing"]),
        ("meta-llama/Llama-3.1-8B", "0.10.2", ["drafter-missing"]),
        ("/models/mine", "0.10.2", []),
        ("/models/mine", "0.32", ["drafter-missing"]),
    ],
)
def test_k_alone_was_enough_for_some_targets_before_0_11(target: str, release: str, said: list[str]) -> None:
    found = examine(K_ALONE.format(target), "", CheckedAgainst(release)).findings
    assert sorted(one.id for one in found if one.severity == "error") == said


def test_k_alone_is_told_from_the_targets_files(tmp_path: Path) -> None:
    for kind, said in (("deepseek_v3", False), ("llama", True)):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": kind, "num_nextn_predict_layers": 1}))
        found = examine(K_ALONE.format("/models/mine"), "", CheckedAgainst("0.9.2", read_facts(str(tmp_path)))).findings
        assert ("drafter-missing" in [one.id for one in found]) == said


@pytest.mark.parametrize(("release", "method"), [("0.19.1", "draft_model"), ("0.26.0", "mtp")])
def test_an_assistant_without_a_method_is_what_the_release_takes_it_for(release: str, method: str) -> None:
    line = """vllm serve google/gemma-4-31B-it --speculative-config '{"model": "google/gemma-4-31B-it-assistant",
        "num_speculative_tokens": 4}' --max-num-batched-tokens 4096"""
    [command] = examine(line, "", CheckedAgainst(release)).commands
    assert command.facts["method"] == method
    assert "draft-slots-shrink-budget" not in [one.id for one in command.findings], "layers of MTP take no slots"


@pytest.mark.parametrize(("release", "said"), [("0.9.2", []), ("0.27", ["method-gone"])])
def test_an_accelerator_is_an_mlp_speculator(release: str, said: list[str]) -> None:
    line = """vllm serve org/llama-13b --speculative-config '{"model": "ibm-ai-platform/llama-13b-accelerator"}'"""
    found = examine(line, "", CheckedAgainst(release)).findings
    assert [one.id for one in found if one.severity != "note"] == said
