"""The doctor on Python: engines built by LLM(...) and engine arguments, mended as a programmer would."""

from __future__ import annotations

import ast
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from augury.tools.doctor.examine import CheckedAgainst, Examination, examine
from augury.tools.doctor.fix import mended

HEAD = "from vllm import LLM, EngineArgs\n"


def look(program: str, release: str = "0.32") -> Examination:
    return examine(HEAD + program, "serve.py", CheckedAgainst(release))


def errors(examination: Examination) -> list[str]:
    return [finding.id for finding in examination.findings if finding.severity == "error"]


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ('LLM("m", speculative_config={"method": "ngram", "num_speculative_tokens": 4})', []),
        ('LLM("m", speculative_config={"method": "medusa", "num_speculative_tokens": 4})', ["drafter-missing"]),
        (
            'vllm.LLM("m", speculative_config=dict(method="ngram", disable_by_batch_size=4, num_speculative_tokens=2))',
            ["key-gone"],
        ),
        (
            'EngineArgs("m", speculative_config={"method": "mlp_speculator", "model": "d", '
            '"num_speculative_tokens": 3})',
            ["method-gone"],
        ),
        (
            'spec = {"method": "ngram", "num_speculative_tokens": 2, "acceptance_method": "typical"}\n'
            'llm = LLM("m", speculative_config=spec)',
            ["key-gone"],
        ),
        ('LLM("m", speculative_model="d", num_speculative_tokens=3)', ["flag-gone"]),
        ('spec = {"method": "a"}\nspec = {"method": "b"}\nLLM("m", speculative_config=spec)', []),  # who knows which
        ('LLM("m", speculative_config=read(), **more)', []),
        ('other("m", speculative_config={"method": "medusa"})', []),
    ],
)
def test_engines_in_programs(program: str, expected: list[str]) -> None:
    found = errors(look(program))
    assert found[: len(expected)] == expected and bool(found) == bool(expected)


NGRAM = '"method": "ngram", "num_speculative_tokens": '


@pytest.mark.parametrize(
    "program",
    [
        f'LLM("m", speculative_config={{{NGRAM}args.k}})',
        f'def serve(K):\n    return LLM("m", speculative_config={{{NGRAM}K}})',
        'LLM("m", speculative_config=dict(method="ngram", num_speculative_tokens=int(x)))',
        'base = read()\nLLM("m", speculative_config={**base, "method": "ngram"})',
        'spec = {"method": "ngram"}\nspec["num_speculative_tokens"] = 3\nLLM("m", speculative_config=spec)',
        'spec = {"method": "ngram"}\nspec.update(more)\nLLM("m", speculative_config=spec)',
        'LLM("m", speculative_config={"method": args.method, "model": f"{root}/d", "num_speculative_tokens": 3})',
    ],
)
def test_what_only_running_it_would_tell_is_no_fault(program: str) -> None:
    found = look(program)
    assert not errors(found) and "json-has-variable" in [finding.id for finding in found.findings]


def test_what_can_be_seen_is_still_held_against_the_release() -> None:
    keys = f'{{{NGRAM}args.k, "disable_by_batch_size": 4}}'
    assert errors(look(f'LLM("m", speculative_config={keys})')) == ["key-gone"]
    assert not errors(look(f'K = 5\nLLM("m", speculative_config={{{NGRAM}K}})'))
    assert "json-has-variable" not in [f.id for f in look(f'K = 5\nLLM("m", speculative_config={{{NGRAM}K}})').findings]


def test_only_programs_of_engines_are_read() -> None:
    text = 'LLM("m", speculative_config={"method": "medusa"})'
    assert not examine(text, "a.py").commands  # neither vLLM nor Augury is imported
    assert not examine("from vllm import LLM\nLLM(", "a.py").commands  # no Python
    assert examine(f"from augury import LLM\n{text}", "a.py").commands[0].release is None  # our own


def test_places_are_characters_not_bytes() -> None:
    keys = '{"method": "ngram", "disable_by_batch_size": 4, "num_speculative_tokens": 2}'
    examination = look(f'größe = 1; ünï = LLM("m", speculative_config={keys})')
    gone = next(finding for finding in examination.findings if finding.id == "key-gone")
    assert examination.text[gone.start : gone.end] == '"disable_by_batch_size": 4'


def test_a_fence_of_python_in_markdown() -> None:
    call = 'LLM("m", speculative_config={"method": "medusa", "num_speculative_tokens": 3})'
    assert errors(examine(f"# Use\n\n```python\n{HEAD}{call}\n```\n", "README.md")) == ["drafter-missing"]


def test_mending_writes_python() -> None:
    program = (
        "spec = dict(method='ngram', num_speculative_tokens=4, disable_by_batch_size=16)\n"
        'more = {"method": "eagle3", "model": "d", "num_speculative_tokens": 3, "speculative_token_tree": "[(0,)]"}\n'
        'LLM("m", speculative_config=spec)\nLLM("m", speculative_config=more)\n'
    )
    after = mended(look(program), CheckedAgainst("0.32"))
    ast.parse(after.text)
    assert "num_speculative_tokens_per_batch_size=[[1, 16, 4], [17, 17, 0]])" in after.text
    assert '"num_speculative_tokens": 3}' in after.text and not errors(after)
    assert after.text.startswith(HEAD + "spec = dict(method='ngram', num_speculative_tokens=4, ")


@given(st.text(alphabet='LM("m", sp_config={}:1[]*\n\'é=)', max_size=60))
def test_any_text_is_looked_at_without_harm(text: str) -> None:
    look(f'LLM("m", speculative_config={text}')
    look(text)


GONE = '{"method": "ngram", "num_speculative_tokens": 3, "disable_by_batch_size": 4}'


@pytest.mark.parametrize(
    "program",
    [
        f"run(['vllm', 'serve', 'm', '--speculative-config', '{GONE}'])\n",
        f"cmd = ['vllm', 'serve', M]\ncmd += ['--port', str(port)]\ncmd.extend(['--speculative-config', '{GONE}'])\n",
        f"run([python, '-m', 'vllm.entrypoints.openai.api_server', '--speculative-config', {json.dumps(GONE)}])\n",
        f"extra = ['--speculative-config', json.dumps({GONE})]\n",
    ],
)
def test_a_command_that_is_a_list_is_read(program: str) -> None:
    found = examine(program, "launch.py")
    assert [one.id for one in found.findings if one.severity == "error"] == ["key-gone"]
    assert len(found.commands) == 1
    after = mended(found, CheckedAgainst())
    if "dumps" in program:
        assert after.text == program, "what a program makes is not there to be edited"
    else:
        assert "key-gone" not in [one.id for one in after.findings] and len(after.commands) == 1


@pytest.mark.parametrize(
    "program",
    [
        "run(['vllm', 'serve', m, '--spec-method', method, '--spec-tokens', str(k)])\n",
        """run(['vllm', 'serve', m, '-sc', f'{{"method": "{method}", "num_speculative_tokens": {k}}}'])\n""",
        "run(['vllm', 'serve', m, '-sc', json.dumps(config)])\n",
        "names = ['vllm', 'sglang']\n",
    ],
)
def test_what_a_program_computes_is_not_wrong(program: str) -> None:
    assert not [one.id for one in examine(program, "launch.py").findings if one.severity != "note"]


def test_what_a_key_holds_is_not_missing_where_it_is_computed() -> None:
    layers = '{"hf_config": {"eagle_aux_hidden_state_layer_ids": layers}}'
    config = f'{{"method": "extract_hidden_states", "num_speculative_tokens": 1, "draft_model_config": {layers}}}'
    program = HEAD + f"LLM('m', speculative_config={config}, kv_transfer_config=KVTransferConfig(kv_role='kv_both'))\n"
    assert not [one.id for one in examine(program, "a.py").findings if one.severity == "error"]
    without = program.replace(", kv_transfer_config=KVTransferConfig(kv_role='kv_both')", "")
    assert [one.id for one in examine(without, "a.py").findings if one.severity == "error"] == [
        "hidden-states-need-connector"
    ]
