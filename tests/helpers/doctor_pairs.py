"""For every entry that `augury doctor` can report: a command that shows it, and a neighbour that does not."""

from __future__ import annotations

import json

from doctor_bugs import BUGS
from doctor_cases import (
    DEEPSEEK,
    EAGLE3,
    HEAD,
    LLAMA,
    NGRAM,
    NGRAM_NOTES,
    OLD,
    SMALL_LM,
    SUFFIX,
    SUFFIX_NOTES,
    Case,
    Pair,
    bad,
    good,
    serve,
    spec,
)
from doctor_fits import FITS
from doctor_names import NAMES

VLLM, V3 = f"vllm serve {LLAMA}", f"vllm serve {DEEPSEEK}"
MTP = spec("mtp", 1)
HYBRID_DRAFT = json.dumps(
    {"method": "draft_model", "model": "tiiuae/Falcon-H1-0.5B-Instruct", "num_speculative_tokens": 3}
)
DFLASH = spec("dflash", 15, model="org/block-drafter")
WINDOWS = ("dflash-windows", *OLD)
PADDED = "disable_padded_drafter_batch"
TABLE = [[1, 16, 3], [17, 256, 0]]
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

CONFIGURATION = [
    Pair("key-unknown", bad({**MTP, "num_spec_token": 3}, "key-unknown"), good(MTP)),
    Pair("key-internal", bad({**MTP, "target_model_config": {}}, "key-internal"), good(MTP)),
    Pair(
        "key-unused",
        bad({**MTP, "prompt_lookup_max": 4}, "key-unused"),
        good({**NGRAM, "prompt_lookup_max": 4}, *NGRAM_NOTES),
    ),
    Pair("value-wrong", bad({**HEAD, "max_model_len": "long"}, "value-wrong"), good({**HEAD, "max_model_len": 2048})),
    Pair("method-unknown", bad(spec("eagel3", model=EAGLE3), "method-unknown"), good(HEAD)),
    Pair("drafter-missing", bad(spec("eagle3"), "drafter-missing"), good(HEAD)),
    Pair("k-missing", bad(spec("ngram", None), "k-missing", *NGRAM_NOTES), good(NGRAM, *NGRAM_NOTES)),
    Pair(
        "k-not-multiple-of-n-predict",
        bad(spec("eagle3", 4, model="org/eagle3"), "k-not-multiple-of-n-predict", drafter="n3-head"),
        good(spec("eagle3", 6, model="org/eagle3"), drafter="n3-head"),
    ),
    Pair(
        "mtp-layer-repeated", bad(spec("mtp", 3), "mtp-layer-repeated", target="deepseek"), good(MTP, target="deepseek")
    ),
    Pair(
        "k-over-block-size",
        bad(spec("dflash", 20, model="org/block"), "k-over-block-size", drafter="dflash"),
        good(spec("dflash", 15, model="org/block"), drafter="dflash"),
    ),
    Pair(
        "k-over-heads",
        bad(spec("medusa", 6, model="org/medusa"), "k-over-heads", "old-runner", "async-off", drafter="medusa"),
        good(spec("medusa", 4, model="org/medusa"), "old-runner", "async-off", drafter="medusa"),
    ),
    Pair(
        "k-not-one",
        bad(
            spec(
                "extract_hidden_states", 2, draft_model_config={"hf_config": {"eagle_aux_hidden_state_layer_ids": [2]}}
            ),
            "k-not-one",
            flags=("--kv-transfer-config '{}'",),
        ),
        good(
            spec(
                "extract_hidden_states", 1, draft_model_config={"hf_config": {"eagle_aux_hidden_state_layer_ids": [2]}}
            ),
            flags=("--kv-transfer-config '{}'",),
        ),
    ),
    Pair(
        "k-over-tree-depth",
        bad(spec("suffix", 32), "k-over-tree-depth", *SUFFIX_NOTES),
        good(spec("suffix", 32, suffix_decoding_max_tree_depth=64), *SUFFIX_NOTES),
    ),
    Pair("k-large", bad(spec("eagle3", 16, model=EAGLE3), "k-large"), good(spec("eagle3", 5, model=EAGLE3))),
    Pair(
        "spec-tensor-parallel-size",
        bad({**HEAD, "tensor_parallel_size": 1}, "spec-tensor-parallel-size"),
        good({**HEAD, "draft_tensor_parallel_size": 1}),
    ),
    Pair(
        "draft-tp",
        bad({**HEAD, "draft_tensor_parallel_size": 2}, "draft-tp", flags=("-tp 4",)),
        good({**HEAD, "draft_tensor_parallel_size": 4}, flags=("-tp 4",)),
    ),
    Pair(
        "draft-heads",
        bad({**SMALL_LM, "draft_tensor_parallel_size": 4}, "draft-heads", flags=("-tp 4",), drafter="odd-heads"),
        good({**SMALL_LM, "draft_tensor_parallel_size": 1}, flags=("-tp 4",), drafter="odd-heads"),
    ),
    Pair(
        "draft-model-tp",
        bad({**SMALL_LM, "draft_tensor_parallel_size": 1}, "draft-model-tp", *OLD, flags=("-tp 4",), version="0.20"),
        good({**SMALL_LM, "draft_tensor_parallel_size": 4}, *OLD, flags=("-tp 4",), version="0.20"),
    ),
    Pair(
        "mlp-unsharded",
        bad(spec("mlp_speculator", model="org/mlp"), "mlp-unsharded", *OLD, flags=("-tp 2",), version="0.9"),
        good(spec("mlp_speculator", model="org/mlp"), *OLD, version="0.9"),
    ),
    Pair(
        "context-too-long",
        bad({**HEAD, "max_model_len": 9000}, "context-too-long", flags=("--max-model-len 8192",)),
        good({**HEAD, "max_model_len": 4096}, flags=("--max-model-len 8192",)),
    ),
    Pair(
        "draft-context-short",
        bad(SMALL_LM, "draft-context-short", target="llama", drafter="tiny-short"),
        good(SMALL_LM, target="llama", drafter="tiny-short", flags=("--max-model-len 2048",)),
    ),
    Pair("no-mtp-layers", bad(MTP, "no-mtp-layers", target="llama"), good(MTP, target="deepseek")),
    Pair(
        "dspark-misfit",
        bad(spec("dspark", 8, model="org/d", dspark_draft_topk=10**7), "dspark-misfit", drafter="dspark"),
        good(spec("dspark", 8, model="org/d", dspark_draft_topk=64), drafter="dspark"),
    ),
    Pair(
        "vocabulary-differs",
        bad(SMALL_LM, "vocabulary-differs", target="llama", drafter="tiny-other"),
        good(SMALL_LM, target="llama", drafter="tiny"),
    ),
    Pair(
        "vocabulary-padding",
        bad(SMALL_LM, "vocabulary-padding", target="llama", drafter="tiny-padded"),
        good(SMALL_LM, target="llama", drafter="tiny"),
    ),
    Pair(
        "token-ids-differ",
        bad(SMALL_LM, "token-ids-differ", target="llama", drafter="tiny-renumbered"),
        good(SMALL_LM, target="llama", drafter="tiny"),
    ),
    Pair(
        "hidden-size-differs",
        bad(HEAD, "hidden-size-differs", target="llama", drafter="narrow-head"),
        good(HEAD, target="llama", drafter="eagle3-head"),
    ),
    Pair(
        "layers-missing",
        bad(HEAD, "layers-missing", target="llama", drafter="deep-head"),
        good(HEAD, target="llama", drafter="eagle3-head"),
    ),
    Pair(
        "checkpoint-is-another-method",
        bad(spec("draft_model", model="org/head"), "checkpoint-is-another-method", drafter="eagle3-head"),
        good(spec("eagle3", model="org/head"), drafter="eagle3-head"),
    ),
    Pair(
        "drafter-class-missing",
        bad(spec("eagle", model="org/head"), "drafter-class-missing", drafter="eagle3-head"),
        good(spec("eagle3", model="org/head"), drafter="eagle3-head"),
    ),
    Pair(
        "class-refuses",
        bad(spec("mtp", model="org/head"), "class-refuses", "checkpoint-is-another-method", drafter="eagle3-head"),
        good(spec("eagle3", model="org/head"), drafter="eagle3-head"),
    ),
    Pair(
        "k-over-block-here",
        Case(
            "augury serve m -sc " + repr(json.dumps(spec("dflash", 20, model="org/block"))),
            ("k-over-block-here",),
            drafter="dflash",
        ),
        Case("augury serve m -sc " + repr(json.dumps(spec("dflash", 7, model="org/block"))), drafter="dflash"),
    ),
    Pair("eagle-method-on-eagle3-head", bad(spec("eagle", model=EAGLE3), "eagle-method-on-eagle3-head"), good(HEAD)),
    Pair(
        "method-detected-otherwise",
        bad(spec("draft_model", model="/models/eagle3-tests/small"), "method-detected-otherwise"),
        good(spec("draft_model", model="/models/small")),
    ),
    Pair("method-not-written", bad(spec(None, model=EAGLE3), "method-not-written"), good(HEAD)),
    Pair("mtp-alias", bad(spec("deepseek_mtp", 1), "mtp-alias"), good(MTP)),
    Pair(
        "schedule-wrong",
        bad({**HEAD, "num_speculative_tokens_per_batch_size": [[2, 16, 3]]}, "schedule-wrong"),
        good({**HEAD, "num_speculative_tokens_per_batch_size": TABLE}),
    ),
    Pair(
        "schedule-capped",
        bad({**HEAD, "num_speculative_tokens_per_batch_size": [[1, 16, 5]]}, "schedule-capped"),
        good({**HEAD, "num_speculative_tokens_per_batch_size": TABLE}),
    ),
    Pair(
        "synthetic-wrong",
        bad({**HEAD, "rejection_sample_method": "synthetic"}, "synthetic-wrong", "synthetic-in-production"),
        good(HEAD),
    ),
    Pair(
        "synthetic-in-production",
        bad(
            {**HEAD, "rejection_sample_method": "synthetic", "synthetic_acceptance_length": 2.0},
            "synthetic-in-production",
        ),
        good({**HEAD, "rejection_sample_method": "standard"}),
    ),
    Pair(
        "lookup-wrong",
        bad({**NGRAM, "prompt_lookup_min": 5, "prompt_lookup_max": 3}, "lookup-wrong", *NGRAM_NOTES),
        good({**NGRAM, "prompt_lookup_min": 3, "prompt_lookup_max": 5}, *NGRAM_NOTES),
    ),
    Pair(
        "heterogeneous-wrong",
        bad({**HEAD, "use_heterogeneous_vocab": True}, "heterogeneous-wrong", "old-runner"),
        good({**SMALL_LM, "use_heterogeneous_vocab": True}, "old-runner"),
    ),
    Pair(
        "keys-exclude-each-other",
        bad(
            {**HEAD, "enable_adaptive_verification": True, "use_local_argmax_reduction": True},
            "keys-exclude-each-other",
        ),
        good({**HEAD, "enable_adaptive_verification": True}),
    ),
    Pair(
        "config-refused",
        bad({**HEAD, "speculative_token_tree": "a tree"}, "config-refused", *OLD, version="0.20"),
        good({**HEAD, "speculative_token_tree": "[(0,), (0, 0), (1,)]"}, *OLD, version="0.20"),
    ),
    Pair(
        "quantisation-mismatch",
        bad(SMALL_LM, "quantisation-mismatch", target="llama-fp8", drafter="tiny-int4"),
        good(SMALL_LM, target="llama-fp8", drafter="tiny-16bit"),
    ),
    Pair(
        "suffix-needs-arctic",
        bad(SUFFIX, *SUFFIX_NOTES),
        Case("pip install arctic-inference==0.1.1\n" + serve(SUFFIX), ("async-off", "old-runner")),
    ),
    Pair("ngram-filler-counted", bad(NGRAM, *NGRAM_NOTES), good(NGRAM, "async-off", *OLD, version="0.20")),
]

TRAFFIC = [
    Pair(
        "high-batch-no-schedule",
        bad(HEAD, "high-batch-no-schedule", flags=("--max-num-seqs 256",)),
        good({**HEAD, "num_speculative_tokens_per_batch_size": TABLE}, flags=("--max-num-seqs 256",)),
    ),
    Pair(
        "not-generating",
        bad(HEAD, "not-generating", flags=("--runner pooling",)),
        good(HEAD, flags=("--runner generate",)),
    ),
    Pair(
        "one-token-answers",
        Case(f"vllm bench latency --model m -sc '{json.dumps(HEAD)}' --output-len 1", ("one-token-answers",)),
        Case(f"vllm bench latency --model m -sc '{json.dumps(HEAD)}' --output-len 128"),
    ),
    Pair("target-small", bad(MTP, "target-small", "no-mtp-layers", target="tiny"), good(MTP, target="deepseek")),
    Pair("target-has-mtp", bad(HEAD, "target-has-mtp", target="deepseek"), good(HEAD, target="llama")),
    Pair(
        "sampling-default-refused",
        bad(HEAD, "sampling-default-refused", target="llama-min-p"),
        good(HEAD, target="llama-min-p", flags=("--generation-config vllm",)),
    ),
    Pair(
        "sampling-default-ignored",
        bad(
            HEAD,
            "sampling-default-ignored",
            "async-not-default",
            *OLD,
            version="0.13",
            flags=("""--override-generation-config '{"min_p": 0.1}'""",),
        ),
        good(
            HEAD,
            "async-not-default",
            *OLD,
            version="0.13",
            flags=("""--override-generation-config '{"top_p": 0.9}'""",),
        ),
    ),
    Pair("logprobs-not-stable", bad(HEAD, "logprobs-not-stable", flags=("--max-logprobs 50",)), good(HEAD)),
    Pair(
        "bench-temperature",
        Case("vllm bench serve --model m --dataset-name random", ("bench-temperature",)),
        Case("vllm bench serve --model m --dataset-name random --temperature 0"),
    ),
    Pair(
        "offline-hub-drafter",
        bad(HEAD, "offline-hub-drafter", before="HF_HUB_OFFLINE=1"),
        good(spec("eagle3", model="/models/EAGLE3-head"), before="HF_HUB_OFFLINE=1"),
    ),
    Pair(
        "unused-per-request-metrics",
        Case(f"{VLLM} --per-request-spec-decode-metrics summary", ("unused-per-request-metrics",)),
        good(HEAD, flags=("--per-request-spec-decode-metrics summary",)),
    ),
    Pair(
        "hidden-states-need-connector",
        bad(
            spec(
                "extract_hidden_states", 1, draft_model_config={"hf_config": {"eagle_aux_hidden_state_layer_ids": [2]}}
            ),
            "hidden-states-need-connector",
        ),
        good(
            spec(
                "extract_hidden_states", 1, draft_model_config={"hf_config": {"eagle_aux_hidden_state_layer_ids": [2]}}
            ),
            flags=("--kv-transfer-config '{}'",),
        ),
    ),
    Pair(
        "hybrid-not-here",
        Case("augury serve ai21labs/Jamba-1.5-Mini -sc " + repr(json.dumps(NGRAM)), ("hybrid-not-here",)),
        Case("augury serve LiquidAI/LFM2-1.2B -sc " + repr(json.dumps(NGRAM))),
    ),
    Pair(
        "hybrid-draft-not-here",
        Case(f"augury serve tiiuae/Falcon-H1-34B-Instruct -sc {HYBRID_DRAFT!r}", ("hybrid-draft-not-here",)),
        Case("augury serve tiiuae/Falcon-H1-34B-Instruct -sc " + repr(json.dumps(NGRAM))),
    ),
    Pair(
        "ascend-k-limit",
        bad(spec("mtp", 16), "ascend-k-limit", "mtp-far-beyond-depth", flags=("--quantization ascend",)),
        good(spec("mtp", 15), "mtp-far-beyond-depth", flags=("--quantization ascend",)),
    ),
    Pair(
        "ascend-draft-tp",
        bad({**HEAD, "draft_tensor_parallel_size": 4}, "ascend-draft-tp", flags=("-tp 4 -q ascend",)),
        good({**HEAD, "draft_tensor_parallel_size": 1}, flags=("-tp 4 -q ascend",)),
    ),
    Pair(
        "ascend-lossy-rule",
        bad(
            HEAD,
            "ascend-lossy-rule",
            flags=("""--additional-config '{"rejection_sampler_config": {"enable_entropy_verify": true}}'""",),
        ),
        good(HEAD, flags=("""--additional-config '{"rejection_sampler_config": {"posterior_alpha": 0.4}}'""",)),
    ),
    Pair(
        "ascend-block-short",
        bad(
            spec("mtp", 2),
            "ascend-lossy-rule",
            "ascend-block-short",
            flags=("""--additional-config '{"rejection_sampler_config": {"enable_block_verify": true}}'""",),
        ),
        good(
            spec("mtp", 3),
            "ascend-lossy-rule",
            flags=("""--additional-config '{"rejection_sampler_config": {"enable_block_verify": true}}'""",),
        ),
    ),
    Pair(
        "capture-sizes",
        bad(HEAD, "capture-sizes", flags=("--cudagraph-capture-sizes 1 2 4 8",)),
        good(HEAD, flags=("--cudagraph-capture-sizes 4 8 16 32",)),
    ),
]

GATES = [
    Pair(
        "key-gone",
        bad({**HEAD, "disable_by_batch_size": 16}, "key-gone"),
        good({**HEAD, "disable_by_batch_size": 16}, "zero-bubble", *OLD, version="0.16"),
    ),
    Pair(
        "key-too-new",
        bad({**HEAD, "kv_cache_dtype": "fp8"}, "key-too-new", *OLD, version="0.20"),
        good({**HEAD, "kv_cache_dtype": "fp8"}, version="0.26"),
    ),
    Pair(
        "key-ignored",
        bad({**HEAD, "parallel_drafting": True}, "key-ignored", "async-not-default", *OLD, version="0.13"),
        good({**HEAD, "parallel_drafting": True}, "zero-bubble", *OLD, version="0.16"),
    ),
    Pair(
        "key-augury-only",
        bad({**NGRAM, "prompt_lookup_match": "latest"}, "key-augury-only", *NGRAM_NOTES),
        Case(serve({**NGRAM, "prompt_lookup_match": "latest"}).replace("vllm serve", "augury serve")),
    ),
    Pair(
        "value-gone",
        bad({**HEAD, "rejection_sample_method": "strict"}, "value-gone"),
        good({**HEAD, "rejection_sample_method": "strict"}, *OLD, version="0.20"),
    ),
    Pair(
        "value-too-new",
        bad({**HEAD, "rejection_sample_method": "block"}, "value-too-new", version="0.24"),
        good({**HEAD, "rejection_sample_method": "block"}, version="0.25"),
    ),
    Pair(
        "value-augury-only",
        bad({**HEAD, "rejection_sample_method": "coupled"}, "value-augury-only"),
        Case(serve({**HEAD, "rejection_sample_method": "coupled"}).replace("vllm serve", "augury serve")),
    ),
    Pair(
        "method-too-new",
        bad(DFLASH, "method-too-new", *WINDOWS, version="0.18"),
        good(DFLASH, *WINDOWS, version="0.20"),
    ),
    Pair("method-gap", bad(SMALL_LM, "method-gap", *OLD, version="0.12"), good(SMALL_LM, *OLD, version="0.15")),
    Pair(
        "method-gone",
        bad(spec("mlp_speculator", model="org/mlp"), "method-gone", "async-off"),
        good(spec("mlp_speculator", model="org/mlp"), *OLD, version="0.9"),
    ),
    Pair(
        "flag-gone",
        Case(f"{VLLM} --speculative-model ngram --num-speculative-tokens 3", ("flag-gone", "flag-gone", *OLD), "0.9"),
        Case(f"{VLLM} --speculative-model ngram --num-speculative-tokens 3", OLD, "0.8.2"),
    ),
    Pair(
        "flag-too-new",
        Case(f"{VLLM} -sc '{json.dumps(NGRAM)}'", ("flag-too-new", "async-off", *OLD), "0.18"),
        Case(f"{VLLM} -sc '{json.dumps(NGRAM)}'", ("async-off", *OLD), "0.19"),
    ),
    Pair(
        "eagle3-preamble",
        bad(HEAD, "eagle3-preamble", "eagle-chunked-prefill", *OLD, version="0.11"),
        good(HEAD, *OLD, version="0.11.1"),
    ),
    Pair(
        "eagle-chunked-prefill",
        bad(spec("eagle", model="org/eagle-head"), "eagle-chunked-prefill", *OLD, version="0.10"),
        good(spec("eagle", model="org/eagle-head"), *OLD, version="0.11.1"),
    ),
    Pair(
        "eagle-lora-graphs",
        bad(
            HEAD,
            "eagle-lora-graphs",
            "lora-too-early",
            "eagle3-preamble",
            "eagle-chunked-prefill",
            *OLD,
            version="0.11",
            flags=("--enable-lora",),
        ),
        good(HEAD, *OLD, version="0.11.1", flags=("--enable-lora",)),
    ),
    Pair(
        "async-too-early",
        bad(HEAD, "async-too-early", *OLD, version="0.11.1", flags=("--async-scheduling",)),
        good(HEAD, *OLD, version="0.12", flags=("--async-scheduling",)),
    ),
    Pair(
        "async-not-default",
        bad(HEAD, "async-not-default", *OLD, version="0.13"),
        good(HEAD, *OLD, version="0.13", flags=("--async-scheduling",)),
    ),
    Pair("zero-bubble", bad(HEAD, "zero-bubble", *OLD, version="0.15"), good(HEAD, *OLD, version="0.19")),
    Pair(
        "structured-too-early",
        bad(
            HEAD,
            "structured-too-early",
            "zero-bubble",
            *OLD,
            version="0.15",
            flags=("--guided-decoding-backend xgrammar",),
        ),
        good(HEAD, "zero-bubble", *OLD, version="0.16", flags=("--guided-decoding-backend xgrammar",)),
    ),
    Pair(
        "pipeline-too-early",
        bad(HEAD, "pipeline-too-early", "zero-bubble", *OLD, version="0.16", flags=("-pp 2",)),
        good(HEAD, "pipeline-broadcast", "zero-bubble", *OLD, version="0.17", flags=("-pp 2",)),
    ),
    Pair(
        "disaggregated-too-early",
        bad(HEAD, "disaggregated-too-early", "zero-bubble", *OLD, version="0.16", flags=("--kv-transfer-config '{}'",)),
        good(HEAD, "zero-bubble", *OLD, version="0.18", flags=("--kv-transfer-config '{}'",)),
    ),
    Pair(
        "disaggregated-fix",
        bad(HEAD, "disaggregated-fix", "zero-bubble", *OLD, version="0.17.1", flags=("--kv-transfer-config '{}'",)),
        good(HEAD, "zero-bubble", *OLD, version="0.18", flags=("--kv-transfer-config '{}'",)),
    ),
    Pair(
        "dflash-attention-backend",
        bad(DFLASH, "dflash-attention-backend", *WINDOWS, version="0.22", flags=("--attention-backend TRITON_ATTN",)),
        good(DFLASH, "dflash-windows", version="0.24", flags=("--attention-backend TRITON_ATTN",)),
    ),
    Pair(
        "eagle3-target-list",
        bad(HEAD, "eagle3-target-list", *OLD, version="0.20", target="granite"),
        good(HEAD, *OLD, version="0.22", target="granite"),
    ),
    Pair(
        "deepseek-v32-eager",
        Case(
            'vllm serve deepseek-ai/DeepSeek-V3.2 --speculative-config \'{"method": "mtp", "num_speculative_tokens": 1}\'',
            ("deepseek-v32-eager", *OLD),
            "0.20",
        ),
        Case(
            'vllm serve deepseek-ai/DeepSeek-V3.2 --speculative-config \'{"method": "mtp", "num_speculative_tokens": 1}\''
        ),
    ),
    Pair(
        "probabilistic-drafts-biased",
        bad({**HEAD, "draft_sample_method": "probabilistic"}, "probabilistic-drafts-biased", version="0.28"),
        good({**HEAD, "draft_sample_method": "probabilistic"}, version="0.29"),
    ),
    Pair("invalid-token-crash", bad(HEAD, *OLD, version="0.23"), good(HEAD, version="0.24")),
    Pair(
        "first-engine-switch",
        bad(HEAD, "first-engine-switch", before="VLLM_USE_V1=0"),
        good(HEAD, before="VLLM_USE_V1=1"),
    ),
]

PEAGLE = {**HEAD, "parallel_drafting": True}
COMPOSABILITY = [
    Pair("old-runner", bad(PEAGLE, "old-runner"), good(HEAD)),
    Pair(
        "new-runner-forced",
        bad(SUFFIX, "new-runner-forced", *SUFFIX_NOTES, before="VLLM_USE_V2_MODEL_RUNNER=1"),
        good(HEAD, before="VLLM_USE_V2_MODEL_RUNNER=1"),
    ),
    Pair(
        "old-runner-forced",
        bad(spec("dspark", 7, model="org/d"), "old-runner-forced", "old-runner", before="VLLM_USE_V2_MODEL_RUNNER=0"),
        good(spec("dspark", 7, model="org/d")),
    ),
    Pair(
        "adaptive-old-runner",
        bad({**PEAGLE, "enable_adaptive_verification": True}, "adaptive-old-runner", "old-runner"),
        good({**HEAD, "enable_adaptive_verification": True}),
    ),
    Pair(
        "adaptive-excludes",
        bad({**HEAD, "enable_adaptive_verification": True}, "adaptive-excludes", flags=("-pp 2",)),
        good({**HEAD, "enable_adaptive_verification": True}, flags=("-tp 2",)),
    ),
    Pair(
        "block-ignored",
        bad({**PEAGLE, "rejection_sample_method": "block"}, "block-ignored", "old-runner"),
        good({**HEAD, "rejection_sample_method": "block"}),
    ),
    Pair(
        "async-refused",
        bad(NGRAM, "async-refused", "ngram-filler-counted", flags=("--async-scheduling",)),
        good(spec("ngram_gpu"), "ngram-filler-counted", flags=("--async-scheduling",)),
    ),
    Pair("async-off", bad({**HEAD, PADDED: True}, "async-off"), good(HEAD)),
    Pair(
        "async-switched-off",
        bad(HEAD, "async-switched-off", flags=("--no-async-scheduling",)),
        good(NGRAM, *NGRAM_NOTES, flags=("--no-async-scheduling",)),
    ),
    Pair("enforce-eager", bad(HEAD, "enforce-eager", flags=("--enforce-eager",)), good(HEAD)),
    Pair(
        "padded-draft-model",
        bad({**SMALL_LM, PADDED: True}, "padded-draft-model", "async-off", "old-runner", version="0.28"),
        good({**SMALL_LM, PADDED: True}, "async-off"),
    ),
    Pair(
        "lora-token-budget",
        bad(HEAD, "lora-token-budget", flags=("--enable-lora --max-num-seqs 32 --max-num-batched-tokens 100",)),
        good(HEAD, flags=("--enable-lora --max-num-seqs 32 --max-num-batched-tokens 128",)),
    ),
    Pair(
        "draft-slots-over-budget",
        bad(
            DFLASH, "draft-slots-over-budget", flags=("--max-num-seqs 32 --max-num-batched-tokens 480",), version="0.27"
        ),
        good(DFLASH, flags=("--max-num-seqs 32 --max-num-batched-tokens 480",), version="0.28"),
    ),
    Pair(
        "draft-slots-over-step",
        bad(DFLASH, "draft-slots-over-step", flags=("--max-num-batched-tokens 15",)),
        good(DFLASH, flags=("--max-num-batched-tokens 16",)),
    ),
    Pair(
        "arctic-plugin",
        bad({**spec("arctic", model="org/head"), "enable_suffix_decoding": True}, "arctic-plugin"),
        good(HEAD),
    ),
    Pair(
        "draft-slots-shrink-budget",
        bad(
            DFLASH,
            "draft-slots-shrink-budget",
            flags=("--max-num-seqs 32 --max-num-batched-tokens 8192",),
            version="0.27",
        ),
        good(DFLASH, flags=("--max-num-seqs 32 --max-num-batched-tokens 8192",)),
    ),
    Pair(
        "schedule-needs-free-k",
        bad({**SUFFIX, "num_speculative_tokens_per_batch_size": TABLE}, "schedule-needs-free-k", *SUFFIX_NOTES),
        good({**HEAD, "num_speculative_tokens_per_batch_size": TABLE}),
    ),
    Pair(
        "schedule-needs-free-k-ngram-gpu",
        bad(
            {**spec("ngram_gpu"), "num_speculative_tokens_per_batch_size": TABLE},
            "schedule-needs-free-k-ngram-gpu",
            "ngram-gpu-async",
            version="0.24",
        ),
        good({**spec("ngram_gpu"), "num_speculative_tokens_per_batch_size": TABLE}, "ngram-filler-counted"),
    ),
    Pair(
        "schedule-data-parallel",
        bad({**HEAD, "num_speculative_tokens_per_batch_size": TABLE}, "schedule-data-parallel", flags=("-dp 2",)),
        good({**HEAD, "num_speculative_tokens_per_batch_size": TABLE}),
    ),
    Pair("dual-batch-overlap", bad(HEAD, "dual-batch-overlap", flags=("--enable-dbo",)), Case(f"{VLLM} --enable-dbo")),
    Pair(
        "fast-prefill",
        bad(HEAD, "fast-prefill", flags=("--kv-sharing-fast-prefill",)),
        good(NGRAM, *NGRAM_NOTES, flags=("--kv-sharing-fast-prefill",)),
    ),
    Pair(
        "logits-processors",
        bad(PEAGLE, "logits-processors", "old-runner", flags=("--logits-processors a.b:C",)),
        good(HEAD, flags=("--logits-processors a.b:C",)),
    ),
    Pair(
        "pipeline-async-old-runner",
        bad(PEAGLE, "pipeline-async-old-runner", "old-runner", flags=("-pp 2 --async-scheduling",)),
        good(HEAD, flags=("-pp 2 --async-scheduling",)),
    ),
    Pair(
        "mtp-block-size",
        bad(spec("mtp", 2), "mtp-block-size", target="two-layers", flags=("--block-size 1",)),
        good(spec("mtp", 2), target="two-layers", flags=("--block-size 16",)),
    ),
    Pair(
        "prefix-cache-last-block",
        bad(HEAD, "prefix-cache-last-block", flags=("--enable-prefix-caching",)),
        good({**HEAD, "disable_eagle_block_drop": True}, flags=("--enable-prefix-caching",)),
    ),
    Pair(
        "disaggregated-both-sides",
        bad(HEAD, "disaggregated-both-sides", flags=("--kv-transfer-config '{}'",)),
        good(HEAD, version="0.27", flags=("--kv-transfer-config '{}'",)),
    ),
]

PAIRS = [*NAMES, *WRITING, *CONFIGURATION, *TRAFFIC, *GATES, *COMPOSABILITY, *FITS, *BUGS]
