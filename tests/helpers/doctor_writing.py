"""Pairs of commands that differ in how a configuration is written down."""

from __future__ import annotations

import json

from doctor_cases import EAGLE3, HEAD, Case, Pair, bad, good, serve
from doctor_shared import MTP, V3, VLLM

WRITING = [
    Pair(
        "mtp-wants-dspark",
        Case(f"vllm serve deepseek-ai/DeepSeek-V4.1 -sc '{json.dumps(MTP)}'", ("mtp-wants-dspark",)),
        Case(f"vllm serve deepseek-ai/DeepSeek-V4 -sc '{json.dumps(MTP)}'"),
    ),
    Pair(
        "quote-open",
        Case(f"{VLLM} --max-model-len 4096 --chat-template 'it", ("quote-open",)),
        Case(f"{VLLM} --max-model-len 4096 --chat-template 'it'"),
    ),
    Pair("flag-misspelt", Case(f"{VLLM} --speculative-confg '{json.dumps(HEAD)}'", ("flag-misspelt",)), good(HEAD)),
    Pair(
        "flag-abbreviated", Case(f"{VLLM} --speculative-conf '{json.dumps(HEAD)}'", ("flag-abbreviated",)), good(HEAD)
    ),
    Pair(
        "flag-twice",
        Case(f"{V3} -sc '{json.dumps(HEAD)}' -sc '{json.dumps(MTP)}'", ("flag-twice",)),
        Case(serve(HEAD) + " -sc.draft_tensor_parallel_size 1"),
    ),
    Pair(
        "given-twice",
        bad(HEAD, "given-twice", flags=("--spec-tokens 4",)),
        good({"model": EAGLE3, "method": "eagle3"}, flags=("--spec-tokens 4",)),
    ),
    Pair("key-twice", bad('{"method": "mtp", "num_speculative_tokens": 1, "method": "mtp"}', "key-twice"), good(MTP)),
    Pair("value-missing", Case(f"{VLLM} -sc --port 80", ("value-missing",)), good(HEAD, flags=("--port 80",))),
    Pair(
        "args-not-split",
        Case(
            f'FROM vllm/vllm-openai\nCMD ["--model", "m", "-sc {json.dumps(json.dumps(MTP))[1:-1]}"]',
            ("args-not-split",),
        ),
        Case(f'FROM vllm/vllm-openai\nCMD ["--model", "m", "-sc", {json.dumps(json.dumps(MTP))}]'),
    ),
    Pair(
        "json-quotes-eaten",
        Case(f'{V3} -sc {{"method":"mtp","num_speculative_tokens":1}}', ("json-quotes-eaten",)),
        good(MTP),
    ),
    Pair("json-smart-quotes", bad("{“method”: “mtp”, “num_speculative_tokens”: 1}", "json-smart-quotes"), good(MTP)),
    Pair("json-python-quotes", Case(f'{V3} -sc "{MTP}"', ("json-python-quotes",)), good(MTP)),
    Pair(
        "json-quoted-twice",
        Case(
            "services:\n  a:\n    image: vllm/vllm-openai:v0.32.0\n    command:\n      - --model=m\n      - -sc\n"
            f"      - \"'{json.dumps(MTP)}'\"\n".replace('{"', '{\\"')
            .replace('": ', '\\": ')
            .replace(', "', ', \\"')
            .replace(': "mtp"', ': \\"mtp\\"'),
            ("json-quoted-twice",),
        ),
        Case(
            "services:\n  a:\n    image: vllm/vllm-openai:v0.32.0\n    command:\n      - --model=m\n      - -sc\n"
            f"      - '{json.dumps(MTP)}'\n"
        ),
    ),
    Pair("json-broken", bad('{"method": "mtp" "num_speculative_tokens": 1}', "json-broken"), good(MTP)),
    Pair("json-not-object", bad('["ngram"]', "json-not-object"), good(MTP)),
    Pair(
        "json-has-variable",
        Case(f'{VLLM} -sc "$CONFIG"', ("json-has-variable",)),
        Case(f"CONFIG='{json.dumps(MTP)}'\n{V3} -sc \"$CONFIG\""),
    ),
    Pair(
        "json-in-yaml",
        Case(f"model: m\nspeculative-config: '{json.dumps(MTP)}'\n", ("json-in-yaml",)),
        Case("model: m\nspeculative-config:\n  method: mtp\n  num_speculative_tokens: 1\n"),
    ),
    Pair("release-unknown", bad(MTP, "release-unknown", version="0.40"), good(MTP, version="0.32.1")),
]
