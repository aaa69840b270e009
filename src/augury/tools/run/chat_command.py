"""`augury chat`: a conversation in the terminal, every token coloured by where it came from."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer

from augury.config import surfaces
from augury.config.errors import ConfigError
from augury.tools.run.chat_sources import Local, Messages, Remote, Source, Wishes

KEYS = ("AUGURY_API_KEY", "VLLM_API_KEY", "OPENAI_API_KEY")


def chat(
    url: Annotated[
        str | None, typer.Argument(help="A server, such as http://localhost:8000; without it, a model runs here.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="'default', a directory, a .gguf file, a hub id; with URL, a name it serves.")
    ] = None,
    speculative_config: Annotated[
        str | None, typer.Option("--speculative-config", "-sc", metavar="JSON", help="How to speculate, as in vLLM.")
    ] = None,
    spec_method: Annotated[str | None, typer.Option(help="Its 'method'.")] = None,
    spec_model: Annotated[str | None, typer.Option(help="Its 'model'.")] = None,
    spec_tokens: Annotated[int | None, typer.Option(help="Its 'num_speculative_tokens'.")] = None,
    api_key: Annotated[str | None, typer.Option(help=f"For URL. Also {', '.join(KEYS)}.")] = None,
    system: Annotated[str | None, typer.Option(help="What the model is told before anything else.")] = None,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token.")] = 0.0,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of an answer.")] = 512,
    seed: int | None = None,
    max_model_len: Annotated[int | None, typer.Option(help="Longest conversation, its answer included.")] = None,
    dtype: str = "auto",
    device: str = "auto",
    timeout: Annotated[float, typer.Option(min=1, help="Seconds to wait for URL's next token.")] = 300.0,
) -> None:
    """Chat with a server or a local model. In a pipe, standard input is the question and only the answer is printed."""
    shortcuts = {"spec_method": spec_method, "spec_model": spec_model, "spec_tokens": spec_tokens}
    if url is not None:
        if speculative_config or any(value is not None for value in shortcuts.values()):
            raise ConfigError("--speculative-config: a server has its own; leave it out, or leave URL out.")
        from augury.tools.shared.endpoint import Endpoint

        key = api_key or next((os.environ[name] for name in KEYS if os.environ.get(name)), None)
        source: Source = Remote(Endpoint("URL", url, key, model, timeout))
    else:
        from augury.tools.shared.loading import load

        spec = surfaces.gather(speculative_config, shortcuts, os.environ)
        arguments: dict[str, Any] = {"dtype": dtype, "device": device, "max_model_len": max_model_len}
        source = Local(load(model or "default", speculative_config=spec, **arguments))
    wishes = Wishes(temperature, max_tokens, seed)
    begun: Messages = [{"role": "system", "content": system}] if system else []
    if sys.stdin is None or not sys.stdin.isatty():
        return _once(source, begun, wishes)
    from augury.tools.run.chat_talk import Talk

    return Talk(source, begun, wishes).run()


def _once(source: Source, begun: Messages, wishes: Wishes) -> None:
    """One question from standard input, one answer to standard output."""
    from augury.tools.shared.given_prompts import gather
    from augury.tools.shared.terminal import UNSAFE

    question = gather("-", None)[0]
    for chunk in source.ask([*begun, {"role": "user", "content": question}], wishes):
        sys.stdout.write(chunk.text.translate(UNSAFE) if sys.stdout.isatty() else chunk.text)
        sys.stdout.flush()
    print()
