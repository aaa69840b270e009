"""The server's parts in one place: engine, tokenizer, figures, names."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request

from augury.serve.defaults import Defaults
from augury.serve.engine_client import EngineClient
from augury.serve.errors import ApiError
from augury.serve.limits import Gate, Limits
from augury.serve.observatory import Observatory
from augury.serve.openai import Generation
from augury.serve.origin import note_origin
from augury.serve.parsers.choose import Parsers
from augury.serve.prompts import Prompts
from augury.serve.scope import CLIENT, PROBES, TENANT


@dataclass(slots=True)
class Settings:
    """What `augury serve` was told, besides the engine's own arguments."""

    model: str
    engine: dict[str, Any]  # for LLM
    names: list[str] = field(default_factory=list)  # under which the model is served; responses give the first
    host: str = "127.0.0.1"
    port: int = 8000
    uds: str | None = None
    limits: Limits = field(default_factory=Limits)
    metrics: str = "summary"  # of speculation, in each response: none, summary or detailed
    log_stats: bool = True
    log_stats_interval: float = 10.0
    access_log: bool = False
    shutdown_timeout: float = 30.0
    generation_config: str = "auto"  # where sampling defaults come from
    collect: str | None = None  # where answers are written down, as token ids
    collect_tokens: int = 20_000_000  # at most
    lora_modules: dict[str, str] = field(default_factory=dict)  # paths of adapters by name, loaded at the start
    lora_from: str | None = None  # the directory under which adapters lie that may be loaded at run time
    otlp_traces_endpoint: str | None = None  # the collector that traces are sent to
    swap_from: str | None = None  # the directory under which drafters lie that may be swapped in
    tool_choice: bool = False  # models may call tools when they want to
    parsers: Parsers = field(default_factory=Parsers)  # by name; a tool parser that is not named is the template's


@dataclass(slots=True)
class Service:
    """What the routes work with."""

    settings: Settings
    client: EngineClient
    prompts: Prompts
    observatory: Observatory
    created: int
    defaults: Defaults = field(default_factory=Defaults)
    parsers: Parsers = field(default_factory=Parsers)
    adapters: dict[str, str] = field(default_factory=dict)  # paths of LoRA adapters by name, those loaded now
    gate: Gate | None = None  # set when the application is made

    @property
    def name(self) -> str:
        """The name in responses."""
        return self.settings.names[0]

    def check_model(self, name: str | None) -> None:
        """Raise a 404 for a model that is not served; the name is only ever compared."""
        if name is not None and name not in self.settings.names and name not in self.adapters:
            shown = name if len(name) <= 100 else name[:97] + "..."
            names = [*self.settings.names, *self.adapters]
            served = f"{', '.join(names)} {'is' if len(names) == 1 else 'are'}"
            raise ApiError(404, f"the model {shown!r} is not served here; {served}.", "model", "model_not_found")

    def named(self, name: str | None) -> str:
        """The name in a response to a request for this model: an adapter's own, or the base's first."""
        return name if name is not None and name in self.adapters else self.name

    def receive(self, body: Generation, request: Request) -> None:
        """Check a request's model, fill in the model's defaults, and record whose request it is."""
        self.check_model(body.model)
        self.defaults.fill(body)
        lora = body.model if body.model in self.adapters else None
        if self.observatory.telemetry is not None:
            note_origin(request.url.path, self.named(body.model), request.headers.get("traceparent"))
        body.came_from(request.scope[TENANT], request.scope[CLIENT], PROBES in request.headers, lora)

    @property
    def healthy(self) -> bool:
        """Whether requests can be taken: the engine answers, and the server is not shutting down."""
        return self.client.healthy and not (self.gate and self.gate.leaving)
