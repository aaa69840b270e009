"""`augury generate`, `demo`, `chat` and `serve`: their options, most of them derived from the models they fill."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from augury.config.engine import EngineConfig
from augury.config.errors import ConfigError
from augury.config.sampling import SamplingParams
from augury.config.surfaces import SHORTCUTS, object_from_json
from augury.tools.run import options
from augury.tools.run.options import ENGINE, SPECULATION, ServerOptions, SpeculationOptions, options_of, takes
from augury.tools.shared.options import Json

if TYPE_CHECKING:
    from augury.tools.run.chat_sources import Messages, NextAnswer, Source

CHAT_KEYS = (*options.API_KEYS, "OPENAI_API_KEY")
SAMPLING = ("max_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "stop", "n")
ENGINE_OPTIONS = ("max_model_len", "dtype", "device", "tensor_parallel_size", "cpu_arithmetic", "quantization")
SERVE_ENGINE_OPTIONS = tuple(
    """
    tokenizer dtype device tensor_parallel_size cpu_arithmetic quantization kv_cache_dtype max_model_len
    max_num_seqs max_num_batched_tokens long_prefill_token_threshold block_size num_gpu_blocks_override
    kv_cache_memory_bytes gpu_memory_utilization enable_prefix_caching kv_offloading_size kv_offloading_backend
    enable_chunked_prefill enforce_eager seed load_format model_impl hf_overrides kv_transfer_config enable_lora
    max_loras max_cpu_loras max_lora_rank
    """.split()
)


@takes(
    options_of(SamplingParams, *SAMPLING, max_tokens=256, temperature=0.0),
    options_of(SpeculationOptions),
    options_of(EngineConfig, *ENGINE_OPTIONS),
)
def generate(
    prompt: Annotated[str | None, typer.Argument(help="The prompt; without it, standard input is read.")] = None,
    model: Annotated[str, typer.Option(help="'default', a directory, a .gguf file, or a hub id.")] = "default",
    prompts_file: Annotated[
        Path | None, typer.Option(help='Many prompts: one a line, or JSONL with "prompt" or "messages".')
    ] = None,
    chat: Annotated[bool, typer.Option("--chat/--raw", help="Use the model's chat template, or the bare text.")] = True,
    as_json: Json = False,
    **given: Any,
) -> None:
    """Answer one prompt or many. On a terminal, tokens from accepted drafts are coloured."""
    from augury.tools.run.generate import generate as run
    from augury.tools.shared.given_prompts import gather

    params = SamplingParams(**{name: given.pop(name) for name in SAMPLING})
    given["speculative_config"] = options.speculation(given)
    if not run(gather(prompt, prompts_file), chat, params, as_json, model=model, **given):
        raise typer.Exit(1)


def demo(
    max_tokens: Annotated[int, typer.Option(help="Maximum number of tokens in each answer.")] = 96,
    as_json: Json = False,
) -> None:
    """Answer three prompts with the embedded model: plain decoding against n-gram and EAGLE-3, in figures."""
    from augury.tools.run.demo import demo as run

    run(max_tokens, as_json)


@takes(
    options_of(SpeculationOptions),
    options_of(SamplingParams, "temperature", "seed", temperature=0.0),
    options_of(EngineConfig, *ENGINE_OPTIONS),
)
def chat(
    url: Annotated[
        str | None, typer.Argument(help="A server, such as http://localhost:8000; without it, a model runs here.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="'default', a directory, a .gguf file, a hub id; with URL, a name it serves.")
    ] = None,
    api_key: Annotated[str | None, typer.Option(help=f"For URL. Also {', '.join(CHAT_KEYS)}.")] = None,
    system: Annotated[str | None, typer.Option(help="The system prompt.")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Maximum number of tokens in an answer.")] = 512,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds to wait for URL's next token.")] = 300.0,
    **given: Any,
) -> None:
    """Chat with a server or a local model. In a pipe, standard input is the question and only the answer is printed."""
    from augury.tools.run.chat_sources import Local, NextAnswer, Remote

    answer = NextAnswer(given.pop("temperature"), max_tokens, given.pop("seed"))
    if url is not None:
        if any(given[name] is not None for name in ("speculative_config", *SHORTCUTS)):
            raise ConfigError("--speculative-config: a server has its own; leave it out, or leave URL out.")
        from augury.tools.shared.endpoint import Endpoint

        key = api_key or next((os.environ[name] for name in CHAT_KEYS if os.environ.get(name)), None)
        source: Source = Remote(Endpoint("URL", url, key, model, timeout))
    else:
        from augury.tools.shared.loading import load

        source = Local(load(model or "default", speculative_config=options.speculation(given), **given))
    begun: Messages = [{"role": "system", "content": system}] if system else []
    if sys.stdin is None or not sys.stdin.isatty():
        return _once(source, begun, answer)
    from augury.tools.run.chat import ChatLoop

    return ChatLoop(source, begun, answer).run()


def _once(source: Source, begun: Messages, answer: NextAnswer) -> None:
    """Answer one question from standard input on standard output."""
    from augury.tools.shared.given_prompts import gather
    from augury.tools.shared.terminal import UNSAFE

    question = gather("-", None)[0]
    for chunk in source.ask([*begun, {"role": "user", "content": question}], answer):
        sys.stdout.write(chunk.text.translate(UNSAFE) if sys.stdout.isatty() else chunk.text)
        sys.stdout.flush()
    print()


@takes(
    options_of(SpeculationOptions, panel=SPECULATION),
    options_of(ServerOptions, strict=True),
    options_of(EngineConfig, *SERVE_ENGINE_OPTIONS, panel=ENGINE),
)
def serve(
    model: Annotated[str, typer.Argument(help="'default', a directory, a .gguf file, or a hub id.")] = "default",
    **given: Any,
) -> None:
    """Serve a model with OpenAI's API. Exit code: 0 stopped on request, 1 could not run, 2 wrong options."""
    server = ServerOptions.model_construct(**{name: given.pop(name) for name in ServerOptions.model_fields})
    given["speculative_config"] = options.speculation(given)
    for name in ("kv_transfer_config", "hf_overrides"):
        if (text := given[name]) is not None:
            given[name] = object_from_json(text, f"--{name.replace('_', '-')}")
    if not all(key.strip() for key in server.api_key or ()):
        raise ConfigError("--api-key is empty, which would let everybody in; give a key, or leave the option out.")
    server.check_replicas()
    EngineConfig.parse(model=model, **given)  # reports option errors before importing torch
    from augury.serve.engine_start import end_ahead
    from augury.serve.settings import settings_of
    from augury.tools.run.serve import run, run_replicas

    if server.on_ray:
        end_ahead()  # each replica starts its own
    settings = settings_of(model, given, server)
    raise typer.Exit(run_replicas(settings, server) if server.on_ray else run(settings))
