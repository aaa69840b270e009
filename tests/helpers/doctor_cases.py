"""Commands for the doctor: what it must say of each, and nothing else.

REAL are commands as people write them, from 0.8 to 0.32, good and bad; BRIEF are those of vLLM's and vllm-ascend's
documents for their own releases, which must raise no alarm; PAIRS hold, for every entry of the knowledge that can be
linted, a command that shows it and one next to it that does not.
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

EAGLE3 = "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"
LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
DEEPSEEK = "deepseek-ai/DeepSeek-V3"

# Directories the tests make: config.json, and texts for tokenizer.json and generation_config.json.
VOCAB = {chr(97 + i): i for i in range(20)}
SIZES = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "max_position_embeddings": 131072}
BIG: dict[str, Any] = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 128256, **SIZES}
SMALL = {**BIG, "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"config": BIG, "vocab": VOCAB},
    "llama-min-p": {"config": BIG, "generation": {"min_p": 0.05}},
    "llama-fp8": {"config": {**BIG, "quantization_config": {"quant_method": "fp8"}}},
    "tiny": {"config": SMALL, "vocab": VOCAB},
    "tiny-int4": {"config": {**SMALL, "quantization_config": {"quant_method": "awq", "bits": 4}}},
    "tiny-16bit": {"config": SMALL},
    "tiny-padded": {"config": {**SMALL, "vocab_size": 128512}, "vocab": VOCAB},
    "tiny-other": {"config": {**SMALL, "vocab_size": 32000}},
    "tiny-renumbered": {"config": SMALL, "vocab": {**VOCAB, "a": 1, "b": 0}},
    "tiny-short": {"config": {**SMALL, "max_position_embeddings": 2048}},
    "deepseek": {"config": {**BIG, "model_type": "deepseek_v3", "num_nextn_predict_layers": 1}},
    "two-layers": {"config": {**BIG, "model_type": "deepseek_v3", "num_nextn_predict_layers": 2}},
    "granite": {"config": {**BIG, "model_type": "granite"}},
    "omni": {"config": {**BIG, "model_type": "qwen3_omni_moe"}},
    "eagle3-head": {"config": {**BIG, "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 32000}},
    "narrow-head": {"config": {**BIG, "hidden_size": 2048, "architectures": ["LlamaForCausalLMEagle3"]}},
    "deep-head": {"config": {**BIG, "architectures": ["LlamaForCausalLMEagle3"],
                             "eagle_aux_hidden_state_layer_ids": [2, 16, 60]}},
    "n3-head": {"config": {**BIG, "architectures": ["LlamaForCausalLMEagle3"], "n_predict": 3}},
    "dflash": {"config": {**BIG, "architectures": ["DFlashDraftModel"], "block_size": 16}},
    "dspark": {"config": {**BIG, "architectures": ["Qwen3DSparkModel"], "block_size": 8}},
    "medusa": {"config": {"model_type": "medusa", "hidden_size": 4096, "num_heads": 4, "vocab_size": 128256}},
    "short-head": {"config": {**BIG, "architectures": ["LlamaForCausalLMEagle3"], "max_position_embeddings": 2048}},
    "deepseek-awq": {"config": {**BIG, "model_type": "deepseek_v3", "num_nextn_predict_layers": 1,
                                "quantization_config": {"quant_method": "awq", "bits": 4}}},
    "deepseek-awq-kept": {"config": {**BIG, "model_type": "deepseek_v3", "num_nextn_predict_layers": 1,
                                     "quantization_config": {"quant_method": "awq", "modules_to_not_convert": ["mtp"]}}},
    "odd-heads": {"config": {**SMALL, "num_attention_heads": 9}},
}


class Case(NamedTuple):
    """A text, and the ids the doctor must give for it."""

    text: str
    expect: tuple[str, ...] = ()
    version: str | None = None
    name: str = ""
    target: str | None = None
    drafter: str | None = None


class Pair(NamedTuple):
    """A command that shows an entry, and a neighbour that does not."""

    id: str
    bad: Case
    good: Case


def spec(method: str | None, k: int | None = 3, **keys: Any) -> dict[str, Any]:
    """A speculative_config."""
    head = {"method": method} if method else {}
    return {**head, **({"num_speculative_tokens": k} if k else {}), **keys}


def serve(config: dict[str, Any] | str, *flags: str, before: str = "") -> str:
    """A `vllm serve` line."""
    text = config if isinstance(config, str) else json.dumps(config)
    target = DEEPSEEK if re.search('mtp["”]', text) else LLAMA
    return " ".join([*([before] if before else []), f"vllm serve {target} --speculative-config '{text}'", *flags])


NGRAM_NOTES = ("async-off", "ngram-filler-counted")  # of ngram in the newest release
SUFFIX_NOTES = ("async-off", "old-runner", "suffix-needs-arctic")
OLD = ("invalid-token-crash",)  # of every release before 0.24
STATES = ("hybrid-index-bound", "hybrid-acceptance-dies")  # of mtp on a hybrid target
HYBRID = (*STATES, "hybrid-prefix-cache-text", "hybrid-prefix-cache-hits")  # and of one whose prefixes are cached
NGRAM, SUFFIX = spec("ngram"), spec("suffix", 8)
HEAD = spec("eagle3", model=EAGLE3)
SMALL_LM = spec("draft_model", model="org/small")


def bad(config: Any, *ids: str, flags: tuple[str, ...] = (), **rest: Any) -> Case:
    """A served configuration with these findings."""
    before = rest.pop("before", "")
    return Case(serve(config, *flags, before=before), ids, **rest)


good = bad  # reads better where nothing, or only notes, are expected


def heredoc(*lines: str) -> str:
    """Lines of a file."""
    return "\n".join(lines) + "\n"


# Commands and objects of the documents, for the releases they were written for: nothing but notes may be said.
BRIEF = [
    Case(serve('{"method":"eagle3","model":"yuhuili/EAGLE3-LLaMA3.1-Instruct-8B","num_speculative_tokens":3}'), OLD, "0.20"),
    Case("""vllm serve deepseek-ai/DeepSeek-V3 \\
  --speculative-config '{"method":"mtp","num_speculative_tokens":1}'""", OLD, "0.20"),
    Case("""vllm serve Qwen/Qwen3-8B \\
  --attention-backend flash_attn \\
  --speculative-config '{"method":"dflash","model":"<dflash-checkpoint>","num_speculative_tokens":15,"parallel_drafting":true}'""",
         ("dflash-windows", *OLD), "0.20"),
    Case("""# Requires: pip install arctic-inference
vllm serve '<target>' \\
  --speculative-config '{"method":"suffix","num_speculative_tokens":32}'""", ("async-off", "k-over-tree-depth", *OLD), "0.20"),
    Case("""vllm serve '<target>' \\
  --speculative-config '{"method":"ngram_gpu","num_speculative_tokens":5,"prompt_lookup_min":2,"prompt_lookup_max":5}'""",
         ("ngram-gpu-async", *OLD), "0.20"),
    Case("""vllm serve <target> \\
  --speculative-config '{"method":"draft_model","model":"<tiny-model>","num_speculative_tokens":4,"parallel_drafting":true}'""",
         OLD, "0.20"),
    Case("""vllm serve <target-model> \\
  --speculative-config '{
    "method": "draft_model",
    "model": "<draft-model>",
    "num_speculative_tokens": 5
  }'""", OLD, "0.20"),
    Case("""vllm serve <target-model> \\
  --speculative-config '{
    "method": "ngram",
    "num_speculative_tokens": 4,
    "prompt_lookup_min": 2,
    "prompt_lookup_max": 5
  }'""", ("async-off", *OLD), "0.20"),
    Case("""vllm serve <target-model> \\
  --speculative-config '{
    "method": "suffix",
    "num_speculative_tokens": 8,
    "suffix_decoding_max_tree_depth": 24,
    "suffix_decoding_max_cached_requests": 10000,
    "suffix_decoding_max_spec_factor": 1.0,
    "suffix_decoding_min_token_prob": 0.1
  }'""", ("async-off", "suffix-needs-arctic", *OLD), "0.20"),
    Case("""vllm serve path/to/target/model \\
  --speculative-config '{"method": "eagle3", "model": "path/to/draft/model", "num_speculative_tokens": 3}'""", OLD, "0.20"),
    Case("""vllm serve /deepseek-ai/DeepSeek-V3.2-Exp-W8A8 \\
    --port 20004 \\
    --data-parallel-size 1 \\
    --tensor-parallel-size 16 \\
    --enable-expert-parallel \\
    --seed 1024 \\
    --served-model-name dsv3 \\
    --max-model-len 36768 \\
    --max-num-batched-tokens 5000 \\
    --max-num-seqs 10 \\
    --quantization ascend \\
    --trust-remote-code \\
    --gpu-memory-utilization 0.9 \\
    --compilation-config '{"cudagraph_mode": "FULL_DECODE_ONLY"}' \\
    --speculative-config '{"num_speculative_tokens": 2, "method":"mtp", "disable_padded_drafter_batch": false}'
    """, ("deepseek-v32-eager", "mtp-layers-may-be-lost", "mtp-long-context", *OLD), "0.20"),
    Case("""vllm serve <model> --additional-config \\
        '{"rejection_sampler_config": {"enable_block_verify": true, \\
        "enable_entropy_verify": true, "posterior_threshold": 0.95, \\
        "posterior_alpha": 0.4}}'""", ()),
    *(Case(json.dumps(config), ids, version) for config, ids, version in (
        ({"method": "eagle", "model": "yuhuili/EAGLE-LLaMA3.1-Instruct-8B", "num_speculative_tokens": 3, "max_model_len": 16384},
         ("async-not-default", *OLD), "0.13"),
        ({"method": "suffix", "num_speculative_tokens": 24, "suffix_decoding_max_tree_depth": 24,
          "suffix_decoding_max_cached_requests": 10000, "suffix_decoding_max_spec_factor": 1.0,
          "suffix_decoding_min_token_prob": 0.1}, ("suffix-needs-arctic", *OLD), "0.13"),
        ({"method": "eagle", "model": "org/eagle-head", "num_speculative_tokens": 5, "disable_by_batch_size": 16,
          "disable_padded_drafter_batch": True}, ("async-not-default", *OLD), "0.13"),
        ({"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_min": 3, "prompt_lookup_max": 3}, OLD, "0.13"),
        ({"method": "suffix", "num_speculative_tokens": 24, "suffix_decoding_max_spec_factor": 0.5,
          "suffix_decoding_min_token_prob": 0.2}, ("suffix-needs-arctic", *OLD), "0.13"),
        ({"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}, OLD, "0.12"),
        ({"method": "eagle", "model": "yuhuili/EAGLE-LLaMA3.1-Instruct-8B", "draft_tensor_parallel_size": 1,
          "num_speculative_tokens": 2}, ("async-not-default", *OLD), "0.12"),
        ({"method": "suffix", "num_speculative_tokens": 15}, ("suffix-needs-arctic", *OLD), "0.12"),
        ({"method": "eagle3", "model": "path/to/draft/model", "num_speculative_tokens": 3}, OLD, "0.20"),
    )),
]

# As people write them, in every place and every era.
REAL = [
    Case("python -m vllm.entrypoints.openai.api_server --host 0.0.0.0 --port 8000 --model meta-llama/Llama-3.3-70B-Instruct "
         "--seed 42 -tp 4 --max-model-len 4096 --speculative_config "
         """'{"model": "meta-llama/Llama-3.2-1B", "num_speculative_tokens": 5}'""", ("method-not-written", *OLD), "0.9.1"),
    Case("python -m vllm.entrypoints.openai.api_server --model m -tp 4 --speculative_config "
         """'{"model": "meta-llama/Llama-3.2-1B", "num_speculative_tokens": 5}'""", ("method-gap", "method-not-written", *OLD), "0.11"),
    Case("python3 -m vllm.entrypoints.openai.api_server --max-model-len 8192 --model nm/Llama-3.3-70B-FP8 "
         "--speculative-model nm/Llama-3.2-3B-FP8 --num-speculative-tokens 5",
         ("flag-gone", "flag-gone", "method-not-written", *OLD), "0.8.5"),
    Case("vllm serve facebook/opt-6.7b --speculative-model '[ngram]' --num-speculative-tokens 5 --ngram-prompt-lookup-max 4", OLD, "0.8.2"),
    Case("vllm serve facebook/opt-6.7b --speculative-model '[ngram]' --num-speculative-tokens 5 --ngram-prompt-lookup-max 4",
         ("flag-gone",) * 3 + NGRAM_NOTES),
    Case('VLLM_USE_V1=1 vllm serve "RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8-dynamic" --seed 42 --tensor-parallel-size 4 '
         """--speculative-config '{"model": "nm-testing/SpeculatorLlama3-1-8B-Eagle3", "num_speculative_tokens": 3, "method":"eagle3"}'""",
         ("eagle-chunked-prefill", "eagle3-preamble", *OLD), "0.10.2"),
    Case("""vllm serve m --tensor-parallel-size 4 --data-parallel-size 4 --max-num-seqs 48 --max-model-len 40690 \\
      --max-num-batched-tokens 16384 --gpu-memory-utilization 0.85 --speculative_config \\
      '{"enforce_eager": true, "method": "eagle3", "model": "/path/to/weight/Eagle3/", "num_speculative_tokens": 3}'""",
         OLD, "0.22.1"),
    Case("vllm serve Qwen/Qwen3-Next-80B-A3B-Instruct --speculative-config "
         """'{"method":"qwen3_next_mtp","num_speculative_tokens":2}'""", OLD, "0.10.2"),
    Case("vllm serve Qwen/Qwen3-Next-80B-A3B-Instruct --speculative-config "
         """'{"method":"qwen3_next_mtp","num_speculative_tokens":2}'""", ("mtp-alias", *HYBRID)),
    Case("vllm serve Qwen/Qwen3-Next-80B-A3B-Instruct --spec-method mtp --spec-tokens 2", HYBRID),
    Case("vllm serve Qwen/Qwen3-Next-80B-A3B-Instruct --spec-method mtp --spec-tokens 2",
         ("flag-too-new",) * 2 + STATES + OLD, "0.20"),
    Case("vllm serve m -sc.method ngram_gpu -sc.num_speculative_tokens 5 -sc.prompt_lookup_max=4", ("ngram-filler-counted",)),
    Case("vllm serve m --speculative-config.method=eagle3 --speculative-config.model=org/eagle3 "
         "--speculative-config.num-speculative-tokens=3"),
    Case("""vllm serve m -sc '{"method": "ngram", "k": 3}'""", ("key-unknown", *NGRAM_NOTES)),
    Case("""vllm serve m -sc '{"method": "ngram", "num_speculative_tokens": 3, "temperature": 0.5}'""", ("key-unknown", *NGRAM_NOTES)),
    Case("""vllm serve m --speculative-config '{"method": "ngram", "num_speculative_tokens": 3, "foo": 1}'""",
         ("key-ignored", *OLD), "0.12"),
    Case("""vllm serve m -sc '{"method": "eagle3", "model": "org/EAGLE3", "num_speculative_tokens": 0}'""", ("value-wrong",)),
    Case("""vllm serve m -sc '{"method": "eagle3", "model": "org/EAGLE3", "num_speculative_tokens": 3.5}'""", ("value-wrong",)),
    Case("""vllm serve m -sc '{"method": "eagle3", "model": "org/EAGLE3", "num_speculative_tokens": "3"}'"""),
    Case("""vllm serve m -sc '{"num_speculative_tokens": 3}'""", ("drafter-missing",)),
    Case("""vllm serve m -sc '{"method": "mtp"}'""", ("k-missing",)),
    Case("""vllm serve m -sc '{"method": "suffix"}'""", SUFFIX_NOTES),
    Case("""vllm serve m -sc '{"method": "custom_class", "model": "my.pkg.Drafter", "num_speculative_tokens": 4}'""",
         ("async-off", "old-runner")),
    Case("""vllm serve m -sc '{"method": "custom_class", "model": "drafter.py", "num_speculative_tokens": 4}'""",
         ("async-off", "old-runner")),
    Case("vllm serve m --num-spec-tokens 3", ("flag-misspelt", "drafter-missing")),
    Case("""vllm serve m --speculation-config '{"method": "mtp", "num_speculative_tokens": 1}'""", ("flag-misspelt",)),
    Case("""vllm serve m -sc '{"method": "mtp", "num_speculative_tokens": 1,}'""", ("json-broken",)),
    Case("""vllm serve m -sc '{"method": "mtp", "num_speculative_tokens": 1'""", ("json-broken",)),
    Case("""vllm serve m -sc "{"method": "mtp", "num_speculative_tokens": 1}" """, ("json-quotes-eaten",)),
    Case("""vllm serve m -sc "{\\"method\\": \\"mtp\\", \\"num_speculative_tokens\\": 1}" """),
    Case("vllm serve m -sc ‘{“method”: “mtp”, “num_speculative_tokens”: 1}’", ("json-smart-quotes",)),
    Case("vllm serve RedHatAI/Qwen3-8B-speculator.eagle3 --per-request-spec-decode-metrics summary"),
    Case("vllm serve RedHatAI/Qwen3-8B-speculator.eagle3 -sc '{\"num_speculative_tokens\": 5}'"),
    Case("vllm serve m --config engine.yaml --per-request-spec-decode-metrics summary"),
    Case("bash -lc \"vllm serve m -sc '{\\\"method\\\": \\\"deepseek_mtp\\\", \\\"num_speculative_tokens\\\": 1}'\"", ("mtp-alias",)),
    Case(serve(spec("eagle", model="org/eagle-x"), "--no-enable-chunked-prefill"), OLD, "0.10"),
    Case("vllm serve m"), Case("vllm serve m --enforce-eager --enable-lora"),
    Case("augury serve --model default -sc '{\"method\": \"suffix\"}'"),
    Case("augury serve --model default -sc '{\"method\": \"ngram\", \"num_speculative_tokens\": 4, \"tree\": {\"top_k\": 2}}'", ("key-unused",)),
    Case("augury serve --spec-method ngram --spec-tokens four", ("value-wrong",)),
    Case("vllm bench throughput --model m --speculative-config '{\"method\": \"ngram\", \"num_speculative_tokens\": 4}' --dtype half",
         NGRAM_NOTES),
    Case(heredoc("#!/usr/bin/env bash", "set -e", "export VLLM_USE_V2_MODEL_RUNNER=1", "vllm serve m \\",
                 "  --speculative-config '{\"method\": \"medusa\", \"model\": \"org/heads\", \"num_speculative_tokens\": 3}' &",
                 "vllm bench serve --model m --temperature 0 --min-p 0.1"),
         ("new-runner-forced", "old-runner", "async-off", "sampling-default-refused"), name="run.sh"),
    Case(heredoc("docker run --gpus all --rm -e HF_HUB_OFFLINE=1 -p 8000:8000 \\", "  vllm/vllm-openai:v0.15.1 \\",
                 "  --model m --speculative-config '{\"method\": \"eagle3\", \"model\": \"org/eagle3\", \"num_speculative_tokens\": 3}'"),
         ("offline-hub-drafter", "zero-bubble", *OLD), name="start.sh"),
    Case(heredoc("FROM vllm/vllm-openai:v0.21.0", "ENV VLLM_LOGGING_LEVEL=INFO", "CMD [\"--model\", \"m\", \\",
                 "     \"--speculative-config\", \\", "     \"{\\\"method\\\": \\\"eagle3\\\", \\\"model\\\": \\\"org/EAGLE3\\\", "
                 "\\\"num_speculative_tokens\\\": 3, \\\"rejection_sample_method\\\": \\\"strict\\\"}\"]"),
         ("value-gone", *OLD), name="Dockerfile"),
    Case(heredoc("FROM python:3.12", "RUN pip install vllm==0.27.0", "# the drafter", "ENTRYPOINT [\"vllm\", \"serve\"]",
                 "CMD [\"m\", \"-sc\", \"{'method': 'ngram', 'num_speculative_tokens': 3}\"]"),
         ("json-python-quotes", "async-off", "old-runner"), name="Dockerfile"),
    Case(heredoc("FROM vllm/vllm-openai:v0.32.0", "CMD vllm serve m \\", "    # a comment that docker drops", "    --async-scheduling \\",
                 "    -sc '{\"method\": \"ngram\", \"num_speculative_tokens\": 3}'"),
         ("async-refused", "ngram-filler-counted"), name="llm.dockerfile"),
    Case("FROM x/vllm:1\nCMD VLLM_USE_V2_MODEL_RUNNER=1 exec vllm serve m -sc '{\"method\": \"suffix\"}' | tee /log",
         ("new-runner-forced", *SUFFIX_NOTES), name="Dockerfile"),
    Case(heredoc("services:", "  llm:", "    image: vllm/vllm-openai:v0.16.0", "    environment:", "      - VLLM_USE_V1=1", "    command: >",
                 "      --model m", "      --speculative-config", "      '{\"method\": \"ngram\", \"num_speculative_tokens\": 4,",
                 "        \"prompt_lookup_max\": 4, \"disable_by_batch_size\": 8}'"), ("async-off", *OLD), name="compose.yaml"),
    Case(heredoc("services:", "  old:", "    image: vllm/vllm-openai:v0.10.0", "    command: [\"--model\", \"m\", \"--speculative-config\", "
                 "'{\"method\": \"eagle\", \"model\": \"org/eagle-x\", \"num_speculative_tokens\": 2}']", "  new:",
                 "    image: vllm/vllm-openai:v0.32.0", "    command: |", "      m", "      -sc '{\"method\": \"mtp\", \"num_speculative_tokens\": 1}'"),
         ("eagle-chunked-prefill", *OLD), name="docker-compose.yml"),
    Case(heredoc("apiVersion: apps/v1", "kind: Deployment", "spec:", "  template:", "    spec:", "      containers:", "      - name: vllm",
                 "        image: registry.local/vllm/vllm-openai:v0.25.1", "        command: [\"/bin/sh\", \"-c\"]", "        args:", "        - |",
                 "          exec vllm serve m \\", "            --pipeline-parallel-size 2 \\",
                 "            --speculative-config '{\"method\": \"draft_model\", \"model\": \"org/small\", \"num_speculative_tokens\": 4, "
                 "\"use_heterogeneous_vocab\": true, \"draft_sample_method\": \"probabilistic\"}'", "---", "kind: Service"),
         ("heterogeneous-wrong", "old-runner", "pipeline-broadcast", "probabilistic-drafts-biased"), name="k8s.yaml"),
    Case(heredoc("kind: Pod", "spec:", "  containers:", "  - image: vllm/vllm-openai:latest", "    args:", "    - --model=m",
                 "    - --speculative-config={\"method\":\"suffix\",\"num_speculative_tokens\":16}", "    env:",
                 "    - name: VLLM_USE_V2_MODEL_RUNNER", "      value: \"1\""),
         ("new-runner-forced", *SUFFIX_NOTES), name="pod.yaml"),
    Case(heredoc("kind: Pod", "spec:", "  containers:", "  - image: vllm/vllm-openai:latest", "    args:", "    - --model", "    - m",
                 "    - \"--speculative-config '{\\\"method\\\": \\\"mtp\\\", \\\"num_speculative_tokens\\\": 1}'\""),
         ("args-not-split",), name="pod.yaml"),
    Case(heredoc("kind: ConfigMap", "data:", "  run.sh: |", "    vllm serve m --max-num-seqs 128 \\",
                 "      -sc '{\"method\": \"mtp\", \"num_speculative_tokens\": 1}'"), ("high-batch-no-schedule",), name="map.yaml"),
    Case(heredoc("[Unit]", "Description=vLLM", "[Service]", "Environment=HF_HUB_OFFLINE=1 \"VLLM_USE_V1=0\"", "ExecStart=/opt/vllm/bin/vllm serve m \\",
                 "  --speculative-config '{\"method\": \"eagle3\", \"model\": \"org/eagle3\", \"num_speculative_tokens\": 3}' \\",
                 "  --enable-dbo", "Restart=always"), ("dual-batch-overlap", "first-engine-switch", "offline-hub-drafter"), name="vllm.service"),
    Case(heredoc("model: m", "tensor-parallel-size: 8", "speculative-config:", "  method: eagle3", "  model: org/eagle3",
                 "  num_speculative_tokens: 3", "  draft_tensor_parallel_size: 3", "  speculative_token_tree: '[(0,)]'"),
         ("draft-tp", "key-gone"), name="engine.yaml"),
    Case('{"model": "m", "speculative_config": {"method": "eagle3", "model": "org/eagle3", "num_speculative_tokens": 3}}', name="engine.json"),
    Case('{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 0}', ("value-wrong", *NGRAM_NOTES), name="spec.json"),
    Case(heredoc("# Guide", "Run `vllm serve` like this:", "```bash", "vllm serve m -sc '{\"method\": \"strict\"}'", "```"),
         ("method-unknown",), name="README.md"),
    Case("env CUDA_VISIBLE_DEVICES=0 nohup vllm serve m -tp 1 -sc '{\"method\": \"ngram_gpu\", \"num_speculative_tokens\": 4}' > log 2>&1 &",
         ("ngram-filler-counted",)),
    Case("ssh node 'x'; numactl -N 0 vllm serve m --compilation-config '{\"cudagraph_capture_sizes\": [5, 10, 16]}' "
         "-sc '{\"method\": \"mtp\", \"num_speculative_tokens\": 4}'", ("capture-sizes",)),
    Case("K=5\nvllm serve m -sc \"{\\\"method\\\": \\\"mtp\\\", \\\"num_speculative_tokens\\\": $K}\""),
    Case("vllm serve m -sc \"{\\\"method\\\": \\\"mtp\\\", \\\"num_speculative_tokens\\\": $K}\"", ("json-has-variable",)),
    Case("vllm serve m --speculative-config '{\"method\": \"dflash\", \"model\": \"z-lab/Qwen3-8B-DFlash\", \"num_speculative_tokens\": 15}' "
         "--max-num-seqs 512 --max-num-batched-tokens 8192", ("draft-slots-shrink-budget", "high-batch-no-schedule"), "0.27"),
    Case("vllm serve m --speculative-config '{\"method\": \"dflash\", \"model\": \"z-lab/Qwen3-8B-DFlash\", \"num_speculative_tokens\": 15}' "
         "--max-num-seqs 512 --max-num-batched-tokens 8192", ("high-batch-no-schedule",)),
    Case("vllm serve m --task embed --speculative-config '{\"method\": \"ngram\", \"num_speculative_tokens\": 4}'", ("not-generating", "async-off", *OLD), "0.20"),
    Case("vllm serve m --speculative-config '{\"method\": \"synthetic\"}'", ("method-unknown",)),
    Case("vllm serve m -sc '{\"method\": \"mtp\", \"num_speculative_tokens\": 3, \"rejection_sample_method\": \"synthetic\", "
         "\"synthetic_acceptance_rate\": 0.7}'", ("key-gone", "synthetic-in-production")),
]
