"""Pairs of commands that differ in a configuration's keys and models."""

from __future__ import annotations

import json

from doctor_cases import (
    EAGLE3,
    HEAD,
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
from doctor_shared import MTP, TABLE

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
