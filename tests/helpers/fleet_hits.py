"""Prefix hits of two live replicas on a trace, each request where the fewest are against sticky routing.

python tests/helpers/fleet_hits.py TRACE.json [--conversations 24] [--at-once 8]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

import fleets

from augury.model.store import resolve


def small_model(directory: Path) -> Path:
    """One layer of random weights with the embedded model's tokenizer: hits depend on tokens alone."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(resolve("default", quiet=True))
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=1,
        max_position_embeddings=32768,
        tie_word_embeddings=True,
    )
    torch.manual_seed(1)
    LlamaForCausalLM(config).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def turns(record: dict[str, Any]) -> list[list[dict[str, str]]]:
    """The messages before each answer of a recorded conversation."""
    said = [
        {"role": one["role"], "content": f"{one.get('content') or ''}{json.dumps(one.get('tool_calls') or '')}"}
        for one in record["traj"]
    ]
    return [said[:n] for n, one in enumerate(said) if one["role"] == "assistant"]


async def replay(url: str, conversations: list[list[list[dict[str, str]]]], at_once: int) -> None:
    """Every turn of every conversation in its order, some conversations at a time; answers of one token."""
    gate = asyncio.Semaphore(at_once)

    async def one(prompts: list[list[dict[str, str]]]) -> None:
        async with gate:
            for messages in prompts:
                body = {"messages": messages, "max_tokens": 1, "temperature": 0}
                (await http.post("/v1/chat/completions", json=body)).raise_for_status()

    async with fleets.clients(url, at_once) as http:
        await asyncio.gather(*map(one, conversations))


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("trace", type=Path)
    parser.add_argument("--conversations", type=int, default=24)
    parser.add_argument("--at-once", type=int, default=8)
    given = parser.parse_args()
    records = json.loads(given.trace.read_text())[: given.conversations]
    conversations = [turns(record) for record in records]
    print(len(conversations), "conversations,", sum(map(len, conversations)), "requests", flush=True)
    with tempfile.TemporaryDirectory() as directory:
        model = small_model(Path(directory))
        for routing in ("spread", "prefix"):
            words = ("--replica-cpus", "1", "--replica-routing", routing, "--max-model-len", "32768")
            with fleets.fleet(model, *words) as running:
                asyncio.run(replay(running.url, conversations, given.at_once))
                asked = running.metric("vllm:prefix_cache_queries_total")
                found = running.metric("vllm:prefix_cache_hits_total")
                share = sum(found.values()) / sum(asked.values())
                print(routing, f"{share:.3f} of {sum(asked.values()):.0f} prompt tokens", asked, flush=True)


if __name__ == "__main__":
    main()
