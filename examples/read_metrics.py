"""Read what speculation brought, under vLLM's names: of an engine in this process, or of a running server.

python examples/read_metrics.py [MODEL or URL] [MAX_TOKENS]
"""

import sys

import httpx

from augury import LLM, SamplingParams

NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 2, "prompt_lookup_max": 3}
PREFIX = "vllm:spec_decode_"


def of_engine(model: str, max_tokens: int) -> None:
    llm = LLM(model, speculative_config=NGRAM)
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    llm.generate("a b c a b c a b c a b", params, use_tqdm=False)
    for metric in llm.get_metrics():
        if metric.name.startswith(PREFIX):
            print(metric)


def of_server(url: str) -> None:
    for line in httpx.get(f"{url}/metrics").text.splitlines():
        if line.startswith(PREFIX):
            print(line)


def main(source: str = "default", max_tokens: int = 32) -> None:
    of_server(source) if source.startswith("http") else of_engine(source, max_tokens)


if __name__ == "__main__":
    main(*sys.argv[1:2], *map(int, sys.argv[2:3]))
