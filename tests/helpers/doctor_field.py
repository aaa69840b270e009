"""Commands as they stand in the field: eras, families and places, with the errors and warnings each must get.

The errors and warnings were written down before the doctor was asked; where one was changed afterwards its comment says
so and why. Notes are not held here.
"""

from __future__ import annotations

from doctor_cases import Case

FIELD = [
    # old api_server flags; amended: the gap of draft_model begins later than 0.9, by its card
    Case('docker run --gpus all vllm/vllm-openai:v0.9.0 --model meta-llama/Llama-3.1-70B-Instruct -tp 4 --speculative-model meta-llama/Llama-3.2-1B-Instruct --num-speculative-tokens 5', ("flag-gone",)),
    # llama3.3 eagle3 v0.9.1; amended: forgotten: that fix is of 0.11.1 as well
    Case('docker run --gpus all -e VLLM_USE_V1=1 vllm/vllm-openai:v0.9.1 --model meta-llama/Llama-3.3-70B-Instruct -tp 4 --speculative-config \'{"method": "eagle3", "model": "yuhuili/EAGLE3-LLaMA3.3-Instruct-70B", "num_speculative_tokens": 3, "draft_tensor_parallel_size": 1}\'', ("eagle-chunked-prefill", "eagle3-preamble")),
    # r1 deepseek_mtp 0.9.2
    Case('python3 -m vllm.entrypoints.openai.api_server --model deepseek-ai/DeepSeek-R1 --trust-remote-code -tp 8 --speculative-config \'{"method":"deepseek_mtp","num_speculative_tokens":1}\'', (), '0.9.2'),
    # compose v3.1 alias
    Case('''services:
  llm:
    image: vllm/vllm-openai:v0.22.0
    ipc: host
    entrypoint: ["python3", "-m", "vllm.entrypoints.openai.api_server"]
    command:
      - --model=deepseek-ai/DeepSeek-V3.1
      - --tensor-parallel-size=8
      - --speculative-config={"method":"deepseek_mtp","num_speculative_tokens":1}
''', ("mtp-alias",), None, 'compose.yaml'),
    # k8s qwen3 speculators
    Case('''apiVersion: apps/v1
kind: Deployment
spec:
  template:
    spec:
      containers:
      - name: vllm
        image: vllm/vllm-openai:v0.12.0
        command: ["vllm", "serve"]
        args:
        - Qwen/Qwen3-32B
        - --tensor-parallel-size
        - "2"
        - --speculative-config
        - '{"method":"eagle3","model":"RedHatAI/Qwen3-32B-speculator.eagle3","num_speculative_tokens":3}'
''', (), None, 'deploy.yaml'),
    # k8s bash -c offline; amended: a warning was expected; it is a note, since the hub's cache may hold the head
    Case('''kind: Pod
spec:
  containers:
  - image: vllm/vllm-openai:v0.28.0
    env:
    - name: HF_HUB_OFFLINE
      value: "1"
    command: ["/bin/bash", "-c"]
    args:
    - |
      set -e
      vllm serve /models/Llama-3.1-8B-Instruct \\
        --max-num-seqs 16 \\
        --speculative-config '{"method":"eagle3","model":"yuhuili/EAGLE3-LLaMA3.1-Instruct-8B","num_speculative_tokens":3}'
''', (), None, 'pod.yaml'),
    # glm-4.5 dotted; amended: streaming parsers have a rule now
    Case('vllm serve zai-org/GLM-4.5-Air -tp 4 --tool-call-parser glm45 --reasoning-parser glm45 --enable-auto-tool-choice --speculative-config.method mtp --speculative-config.num_speculative_tokens 1', ("tool-parser-bursts",), '0.11.2'),
    # gpt-oss mtp
    Case('vllm serve openai/gpt-oss-120b -tp 2 --async-scheduling -sc \'{"method":"mtp","num_speculative_tokens":1}\'', ("mtp-target-without",)),
    # gpt-oss eagle3 async 0.13
    Case('vllm serve openai/gpt-oss-20b --async-scheduling --speculative-config \'{"method": "eagle3", "model": "RedHatAI/gpt-oss-20b-speculator.eagle3", "num_speculative_tokens": 3}\'', (), '0.13'),
    # kimi k2 mtp alias
    Case('vllm serve moonshotai/Kimi-K2-Instruct -tp 16 --trust-remote-code -sc \'{"method":"deepseek_mtp","num_speculative_tokens":1}\'', ("mtp-alias", "mtp-target-without")),
    # kimi k2 thinking DCP eagle3
    Case('vllm serve moonshotai/Kimi-K2-Thinking -tp 8 --decode-context-parallel-size 8 --trust-remote-code -sc \'{"method": "eagle3", "model": "nvidia/Kimi-K2-Thinking-Eagle3", "num_speculative_tokens": 3}\'', ("decode-context-parallel",)),
    # gemma3 draft 0.12
    Case('vllm serve google/gemma-3-27b-it --speculative-config \'{"model":"google/gemma-3-1b-it","num_speculative_tokens":4}\'', ("method-gap",), '0.12'),
    # gemma4 assistant early
    Case('vllm serve google/gemma-4-31B-it -sc \'{"method":"mtp","model":"google/gemma-4-31B-it-assistant","num_speculative_tokens":2}\'', ("mtp-target-too-early",), '0.20'),
    # qwen3-next alias 0.10.2
    Case('vllm serve Qwen/Qwen3-Next-80B-A3B-Instruct -tp 4 --speculative-config \'{"method":"qwen3_next_mtp","num_speculative_tokens":2}\' --no-enable-chunked-prefill', (), '0.10.2'),
    # qwen2.5 coder draft; amended: the two sizes are padded to 151936 and 152064 rows, which vLLM refuses
    Case('uv run vllm serve Qwen/Qwen2.5-Coder-32B-Instruct -sc \'{"model":"Qwen/Qwen2.5-Coder-0.5B-Instruct","num_speculative_tokens":"5"}\'', ("padding-by-name",)),
    # systemd dflash
    Case('''[Unit]
Description=vLLM
[Service]
Environment="VLLM_USE_V1=1" "HF_HOME=/srv/hf"
ExecStart=/opt/vllm/bin/vllm serve Qwen/Qwen3-8B --port 8000 --attention-backend FLASH_ATTN --speculative-config '{"method": "dflash", "model": "z-lab/Qwen3-8B-DFlash-b16", "num_speculative_tokens": 15}'
Restart=always
''', (), '0.21', 'vllm.service'),
    # helm env backend dflash
    Case('''kind: Deployment
spec:
  template:
    spec:
      containers:
      - image: vllm/vllm-openai:v0.20.2
        env:
        - {name: VLLM_ATTENTION_BACKEND, value: FLASHINFER}
        args: ["--model", "Qwen/Qwen3-8B", "--speculative-config", '{"method":"dflash","model":"z-lab/Qwen3-8B-DFlash-b16","num_speculative_tokens":15}']
''', ("dflash-attention-backend",), None, 'd.yaml'),
    # 405B draft tp
    Case('vllm serve meta-llama/Llama-3.1-405B-Instruct-FP8 -tp 8 --speculative-config \'{"method":"draft_model","model":"meta-llama/Llama-3.2-1B-Instruct","num_speculative_tokens":5,"draft_tensor_parallel_size":1}\'', ("draft-model-tp",), '0.15'),
    # v3.2 mtp 0.12
    Case('vllm serve deepseek-ai/DeepSeek-V3.2 -tp 8 --tokenizer-mode deepseek_v32 --speculative-config \'{"method":"mtp","num_speculative_tokens":1}\'', (), '0.12'),
    # 235B pp2
    Case('vllm serve Qwen/Qwen3-235B-A22B-Instruct-2507 -tp 8 -pp 2 --distributed-executor-backend ray --speculative-config \'{"method": "eagle3", "model": "lmsys/Qwen3-235B-A22B-EAGLE3", "num_speculative_tokens": 3}\'', ("pipeline-too-early",), '0.13'),
    # glm-4.6 dp schedule
    Case('vllm serve zai-org/GLM-4.6-FP8 -dp 8 --enable-expert-parallel --kv-cache-dtype fp8 -sc \'{"method":"mtp","num_speculative_tokens":1,"num_speculative_tokens_per_batch_size":[[1,64,1],[65,256,0]]}\'', ("schedule-data-parallel",)),
    # qwen3.5 mtp early; amended: another id was expected; the retired name has a gate of its own
    Case('vllm serve Qwen/Qwen3.5-397B-A17B-FP8 -tp 8 --speculative-config \'{"method":"qwen3_5_mtp","num_speculative_tokens":2}\'', ("method-too-new", "mtp-alias", "target-too-new"), '0.16'),
    # v4 dspark
    Case('vllm serve deepseek-ai/DeepSeek-V4-Flash -tp 4 -sc \'{"method":"dspark","num_speculative_tokens":4}\'', ("method-too-new",), '0.24'),
    # wrong size head
    Case('vllm serve meta-llama/Llama-3.1-8B-Instruct -sc \'{"method": "eagle3", "model": "yuhuili/EAGLE3-LLaMA3.3-Instruct-70B", "num_speculative_tokens": 3}\'', ("head-of-another-size",)),
    # dockerfile suffix async
    Case('''FROM vllm/vllm-openai:v0.29.0
RUN pip install arctic-inference==0.1.1
ENTRYPOINT ["vllm", "serve", "Qwen/Qwen3-Coder-30B-A3B-Instruct", "--async-scheduling", "--speculative-config", "{\\"method\\": \\"suffix\\", \\"num_speculative_tokens\\": 24}"]
''', ("async-refused",), None, 'Dockerfile'),
    # log stats off; amended: a note, which this list does not hold
    Case('vllm serve meta-llama/Llama-3.1-8B-Instruct --disable-log-stats -sc \'{"method": "eagle3", "model": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", "num_speculative_tokens": 3}\'', ()),
    # ray serve llm yaml
    Case('''applications:
- args:
    llm_configs:
    - model_loading_config: {model_id: llama, model_source: meta-llama/Llama-3.1-8B-Instruct}
      engine_kwargs:
        tensor_parallel_size: 2
        speculative_config:
          method: eagle3
          model: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B
          num_speculative_tokens: 3
          disable_by_batch_size: 16
''', ("key-gone",), None, 'serve.yaml'),
    # kserve
    Case('''apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
spec:
  predictor:
    model:
      modelFormat: {name: huggingface}
      args:
      - --model_name=llama3
      - --model_id=meta-llama/Llama-3.1-8B-Instruct
      - --speculative-config={"method":"ngram","num_speculative_tokens":5,"prompt_lookup_max":4,"speculative_token_tree":"[(0,)]"}
''', ("key-gone",), None, 'isvc.yaml'),
    # production-stack helm values
    Case('''servingEngineSpec:
  modelSpec:
  - name: llama3
    repository: vllm/vllm-openai
    tag: v0.27.0
    modelURL: meta-llama/Llama-3.1-8B-Instruct
    vllmConfig:
      tensorParallelSize: 1
      extraArgs: ["--speculative-config", '{"method":"eagle3","model":"yuhuili/EAGLE3-LLaMA3.1-Instruct-8B","num_speculative_tokens":3,"disable_by_batch_size":8}']
''', ("key-gone",), None, 'values.yaml'),
    # ascend v3
    Case('docker run --rm quay.io/ascend/vllm-ascend:v0.11.0rc1 vllm serve /models/DeepSeek-V3.1-W8A8 --quantization ascend -tp 16 --speculative-config \'{"num_speculative_tokens":1,"method":"deepseek_mtp"}\' ', ("mtp-alias",)),
    # nvcr
    Case('docker run --gpus all nvcr.io/nvidia/vllm:25.09-py3 vllm serve openai/gpt-oss-120b --speculative-config \'{"method": "eagle3", "model": "nvidia/gpt-oss-120b-Eagle3", "num_speculative_tokens": 3}\'', ()),
    # rocm image
    Case('docker run rocm/vllm:latest vllm serve meta-llama/Llama-3.1-70B-Instruct -tp 8 -sc \'{"method": "eagle3", "model": "yuhuili/EAGLE3-LLaMA3.1-Instruct-70B", "num_speculative_tokens": 3}\'', ()),
    # slurm srun
    Case('srun --gpus 8 --ntasks 1 bash -lc "CUDA_VISIBLE_DEVICES=0,1,2,3 nohup vllm serve mistralai/Mistral-Small-24B-Instruct-2501 -tp 4 --speculative-config \'{\\"method\\":\\"ngram\\",\\"num_speculative_tokens\\":5,\\"prompt_lookup_max\\":4,\\"prompt_lookup_min\\":6}\' > log 2>&1 &"', ("lookup-wrong",)),
    # dflash token budget
    Case('vllm serve Qwen/Qwen3-8B --max-num-seqs 256 --max-num-batched-tokens 2048 -sc \'{"method":"dflash","model":"z-lab/Qwen3-8B-DFlash-b16","num_speculative_tokens":15}\'', ("draft-slots-over-budget",), "0.27"),
    # minimax m2 eagle3
    Case('SAFETENSORS_FAST_GPU=1 vllm serve MiniMaxAI/MiniMax-M2 -tp 4 --tool-call-parser minimax_m2 -sc \'{"method": "eagle3", "model": "thoughtworks/MiniMax-M2-Eagle3", "num_speculative_tokens": 3}\'', ()),
    # llama4 eagle 0.10; amended: forgotten: that fix is of 0.11.1 as well
    Case('vllm serve meta-llama/Llama-4-Maverick-17B-128E-Instruct-FP8 -tp 8 --speculative-config \'{"method":"eagle","model":"nvidia/Llama-4-Maverick-17B-128E-Eagle3","num_speculative_tokens":3}\'', ("eagle-chunked-prefill", "eagle-method-on-eagle3-head"), '0.10'),
    # vicuna medusa
    Case('vllm serve lmsys/vicuna-7b-v1.3 --speculative-config \'{"method":"medusa","model":"FasterDecoding/medusa-vicuna-7b-v1.3","num_speculative_tokens":5}\' --logits-processors my.mod:Proc', ("logits-processors",)),
    # granite mlp
    Case('vllm serve ibm-granite/granite-3.1-8b-instruct --speculative-config \'{"model":"ibm-granite/granite-8b-code-instruct-accelerator","num_speculative_tokens":3,"method":"mlp_speculator"}\'', ("method-gone",), '0.14'),
    # lmcache image tag
    Case('docker run lmcache/vllm-openai:v0.3.7 meta-llama/Llama-3.1-8B-Instruct --speculative-config \'{"method": "eagle3", "model": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", "num_speculative_tokens": 3}\'', ()),
    # rocm tag
    Case('docker run rocm/vllm:rocm7.0.0_vllm_0.10.2_20251006 vllm serve meta-llama/Llama-3.1-8B-Instruct --speculative-config \'{"method": "eagle3", "model": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", "num_speculative_tokens": 3}\'', ("eagle-chunked-prefill", "eagle3-preamble")),
    # aws dlc
    Case('docker run 763104351884.dkr.ecr.us-east-1.amazonaws.com/vllm:0.17-gpu-py312 --model Qwen/Qwen3-8B --speculative-config \'{"method": "suffix", "num_speculative_tokens": 8}\'', ()),
    # llm-d helm
    Case('''modelArtifacts:
  uri: "hf://Qwen/Qwen3-0.6B"
decode:
  containers:
  - name: vllm
    image: ghcr.io/llm-d/llm-d-cuda:v0.3.0
    modelCommand: vllmServe
    args:
    - "--speculative-config"
    - '{"method":"ngram","num_speculative_tokens":4,"prompt_lookup_max":4}'
    - "--disable-log-requests"
''', (), None, 'ms.yaml'),
    # env var arg expansions k8s
    Case('''kind: Deployment
spec:
  template:
    spec:
      containers:
      - image: vllm/vllm-openai:v0.26.0
        env: [{name: SPEC, value: '{"method":"mtp","num_speculative_tokens":1}'}]
        args: ["--model", "deepseek-ai/DeepSeek-V3", "--speculative-config", "$(SPEC)"]
''', (), None, 'd.yaml'),
    # shell heredoc var
    Case('''#!/usr/bin/env bash
MODEL=${MODEL:-meta-llama/Llama-3.3-70B-Instruct}
SPEC_CONFIG='{"method":"mtp","num_speculative_tokens":1}'
exec vllm serve "$MODEL" -tp 4 --speculative-config "$SPEC_CONFIG"
''', ("mtp-target-without",), '0.20', 'run.sh'),
    # array args
    Case('''#!/bin/bash
ARGS=(
  --tensor-parallel-size 8
  --speculative-config '{"method":"deepseek_mtp","num_speculative_tokens":1}'
)
vllm serve deepseek-ai/DeepSeek-V3-0324 "${ARGS[@]}"
''', ("mtp-alias",), '0.20', 'run.sh'),
    # compose string folded
    Case('''services:
  vllm:
    image: vllm/vllm-openai:v0.24.0
    environment:
      - VLLM_ATTENTION_BACKEND=FLASH-ATTN
    command: >
      --model Qwen/Qwen3-14B
      --quantization awq_marlin
      --speculative-config '{"method":"eagle3","model":"AngelSlim/Qwen3-14B_eagle3","num_speculative_tokens":3}'
''', ("backend-misspelt",), None, 'compose.yml'),
    # json escaped in compose
    Case('''services:
  vllm:
    image: vllm/vllm-openai:v0.24.0
    command: ["--model","Qwen/Qwen3-14B","--speculative-config","{\\"method\\":\\"eagle3\\",\\"model\\":\\"AngelSlim/Qwen3-14B_eagle3\\",\\"num_speculative_tokens\\":3,\\"draft_tensor_parallel_size\\":2}","-tp","4"]
''', ("draft-tp",), None, 'compose.yml'),
    # windows cmd ^
    Case('''vllm serve Qwen/Qwen3-8B ^
 --speculative-config "{\\"method\\":\\"ngram\\",\\"num_speculative_tokens\\":3}"''', ()),
    # python offline
    Case('''from vllm import LLM, SamplingParams
sampling = SamplingParams(temperature=0.8, min_p=0.1)
llm = LLM(model="meta-llama/Llama-3.1-8B-Instruct", tensor_parallel_size=4, speculative_config={"model": "yuhuili/EAGLE-LLaMA3.1-Instruct-8B", "draft_tensor_parallel_size": 1, "num_speculative_tokens": 2})
out = llm.generate(["hi"], sampling)
''', ("sampling-request-refused",), None, 'x.py'),
    # async engine args
    Case('''from vllm import AsyncEngineArgs, AsyncLLMEngine
args = AsyncEngineArgs(model="Qwen/Qwen3-8B", speculative_config={"method": "mtp", "num_speculative_tokens": 1})
engine = AsyncLLMEngine.from_engine_args(args)
''', ("mtp-target-without",), None, 'x.py'),
    # kimi linear
    Case('vllm serve moonshotai/Kimi-Linear-48B-A3B-Instruct --trust-remote-code -sc \'{"method": "ngram_gpu", "num_speculative_tokens": 4}\'', ()),
    # ernie dense mtp
    Case('vllm serve baidu/ERNIE-4.5-21B-A3B-PT -sc \'{"method": "ernie_mtp", "num_speculative_tokens": 1}\'', ("mtp-alias",)),
    # nemotron
    Case('vllm serve nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4 -sc \'{"method": "mtp", "num_speculative_tokens": 3}\'', ("hybrid-prefix-cache-text",)),
    # qwen3 vl eagle3
    Case('vllm serve Qwen/Qwen3-VL-30B-A3B-Instruct --limit-mm-per-prompt \'{"image":4}\' -sc \'{"method": "eagle3", "model": "taobao-mnn/Qwen3-VL-30B-A3B-Instruct-Eagle3", "num_speculative_tokens": 3}\'', ()),
    # mimo
    Case('vllm serve XiaomiMiMo/MiMo-7B-RL --trust-remote-code --speculative-config \'{"method": "mtp", "num_speculative_tokens": 1}\'', (), '0.11.2'),
    # step
    Case('vllm serve stepfun-ai/Step-3.5-Flash -tp 8 --trust-remote-code --speculative-config \'{"method": "step3p5_mtp", "num_speculative_tokens": 1}\'', ("mtp-alias",), '0.16'),
    # distill mtp
    Case('vllm serve deepseek-ai/DeepSeek-R1-Distill-Qwen-32B -tp 2 --speculative-config \'{"method": "deepseek_mtp", "num_speculative_tokens": 1}\'', ("mtp-target-without",), '0.9.2'),
    # awq v3
    Case('vllm serve cognitivecomputations/DeepSeek-R1-AWQ -tp 8 --quantization awq_marlin --speculative-config \'{"method": "deepseek_mtp", "num_speculative_tokens": 1}\'', (), '0.9.2'),
    # draft model vs mtp family; amended: another id was expected; the entry did not exist
    Case('vllm serve deepseek-ai/DeepSeek-V3 -tp 8 -sc \'{"method": "draft_model", "model": "Qwen/Qwen3.5-0.8B", "num_speculative_tokens": 3}\'', ("draft-model-has-mtp",)),
    # spec in --config file ref
    Case('vllm serve --config /etc/vllm/config.yaml --per-request-spec-decode-metrics summary', ()),
    # shortcut flags early
    Case('vllm serve meta-llama/Llama-3.1-8B-Instruct --spec-method eagle3 --spec-model yuhuili/EAGLE3-LLaMA3.1-Instruct-8B --spec-tokens 3', ("flag-too-new",), '0.21'),
    # lora + eagle budget
    Case('vllm serve meta-llama/Llama-3.1-8B-Instruct --enable-lora --max-num-seqs 256 --max-num-batched-tokens 512 -sc \'{"method": "eagle3", "model": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", "num_speculative_tokens": 3}\'', ("lora-token-budget",)),
    # glm-5 dsa
    Case('vllm serve zai-org/GLM-5-FP8 -tp 8 -sc \'{"method": "mtp", "num_speculative_tokens": 3, "index_share_for_mtp_iteration": true}\'', ()),
    # gpt-oss eagle3 async off
    Case('vllm serve openai/gpt-oss-120b -tp 4 --no-async-scheduling -sc \'{"method": "eagle3", "model": "nvidia/gpt-oss-120b-Eagle3-short-context", "num_speculative_tokens": 3}\'', ("async-switched-off",)),
    # podman quadlet
    Case('''[Container]
Image=docker.io/vllm/vllm-openai:v0.23.0
Exec=--model Qwen/Qwen3-8B --speculative-config '{"method":"eagle3","model":"AngelSlim/Qwen3-8B_eagle3","num_speculative_tokens":3,"disable_by_batch_size":4}'
Environment=HF_HUB_OFFLINE=0
''', ("key-gone",), None, 'vllm.container'),
    # skypilot
    Case('''resources:
  accelerators: H100:8
setup: |
  pip install vllm==0.11.2
run: |
  vllm serve deepseek-ai/DeepSeek-V3.1 \\
    --tensor-parallel-size $SKYPILOT_NUM_GPUS_PER_NODE \\
    --speculative-config '{"method": "mtp", "num_speculative_tokens": 1, "draft_sample_method": "probabilistic"}'
''', ("key-ignored",), None, 'sky.yaml'),
    # bench throughput
    Case('vllm bench throughput --model meta-llama/Llama-3.1-8B-Instruct --dataset-name sonnet --speculative-config \'{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 5, "prompt_lookup_min": 2}\'', (), '0.20'),
]
