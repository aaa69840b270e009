"""Options of `augury serve` besides the engine's arguments; the command line and Ray's files read it off here."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from augury.config.errors import ConfigError

API_KEYS = ("AUGURY_API_KEY", "VLLM_API_KEY")
NETWORK, LIMITS, SPECULATION, LOG, ENGINE = "Where, and for whom", "Limits", "Speculation", "Log", "Engine"  # panels
TOOLS, ADAPTERS, REPLICAS = "Tools and reasoning", "Adapters", "Replicas"


def _server(default: Any, panel: str, text: str, metavar: str | None = None, **more: Any) -> Any:
    extra = {"panel": panel, "metavar": metavar, "envvar": more.pop("envvar", None)}
    return Field(default, description=text, json_schema_extra=extra, **more)


class ServerOptions(BaseModel):
    """Options of `augury serve` besides the engine's arguments."""

    host: str = _server("127.0.0.1", NETWORK, "Where to listen; 0.0.0.0 for every interface.")
    port: int = _server(8000, NETWORK, "0 picks a free port.", ge=0, le=65535)
    uds: str | None = _server(None, NETWORK, "Listen on a Unix socket instead.", "PATH")
    api_key: list[str] | None = _server(
        None, NETWORK, f"Clients must send it; may be repeated. Also {' or '.join(API_KEYS)}."
    )
    share_between_keys: bool = _server(
        False,
        NETWORK,
        "Let API keys share cached prompts and learn from each other's answers, which they can then read.",
    )
    allowed_host: list[str] | None = _server(
        None, NETWORK, "A host name that browsers may use for the server, besides its address; may be repeated.", "NAME"
    )
    served_model_name: list[str] | None = _server(
        None, NETWORK, "The model's names for clients; several may follow one flag."
    )
    max_concurrent_requests: int = _server(1024, LIMITS, "More than this many get 429.", ge=1)
    max_request_bytes: int = _server(16 << 20, LIMITS, "Larger requests get 413.", ge=1)
    read_timeout: float = _server(30.0, LIMITS, "Seconds a client has to send its request.", ge=0.1)
    write_timeout: float = _server(30.0, LIMITS, "Seconds a client may go without reading any of its answer.", ge=0.1)
    shutdown_timeout: float = _server(30.0, LIMITS, "Seconds that running requests get to finish.", ge=0)
    per_request_spec_decode_metrics: Literal["none", "summary", "detailed"] = _server(
        "summary", SPECULATION, "What each response says about speculation."
    )
    swap_from: str | None = _server(
        None, SPECULATION, "Clients may swap in drafters that lie under this directory (`augury drafter swap`).", "DIR"
    )
    collect: str | None = _server(
        None, SPECULATION, "Write the token ids of answers to this directory, to train a drafter on them.", "DIR"
    )
    collect_tokens: int = _server(20_000_000, SPECULATION, "Maximum number of tokens to collect.", ge=1)
    lora_modules: list[str] | None = _server(
        None, ADAPTERS, "LoRA adapters to load, under the names that clients ask for; several may follow.", "NAME=PATH"
    )
    lora_from: str | None = _server(
        None, ADAPTERS, "Clients may load adapters that lie under this directory (/v1/load_lora_adapter).", "DIR"
    )
    enable_auto_tool_choice: bool = _server(False, TOOLS, "The model may call a request's tools when it wants to.")
    tool_call_parser: str | None = _server(
        None, TOOLS, "Parser for tool calls, by vLLM's names; by default inferred from the chat template.", "NAME"
    )
    reasoning_parser: str | None = _server(None, TOOLS, "Parser for reasoning, by vLLM's names.", "NAME")
    disable_log_stats: bool = _server(False, LOG, "Do not log statistics.")
    log_stats_interval: float = _server(
        10.0, LOG, "Seconds between two lines of statistics.", ge=0.1, envvar="VLLM_LOG_STATS_INTERVAL"
    )
    otlp_traces_endpoint: str | None = _server(
        None, LOG, "Send OpenTelemetry traces and gen_ai metrics to this collector, by OTLP over HTTP.", "URL"
    )
    enable_access_log: bool = _server(False, LOG, "Log a line for each request.")
    generation_config: str = _server(
        "auto", ENGINE, "Sampling defaults: 'auto' for the model's own, 'vllm' for none, or a directory's."
    )
    replicas: int = _server(1, REPLICAS, "Engines behind one address, on Ray Serve: needs augury[ray].", "N", ge=1)
    max_replicas: int | None = _server(
        None,
        REPLICAS,
        "Scale up to this many while requests queue or acceptance falls, and down again afterwards.",
        "N",
        ge=1,
    )
    target_ongoing_requests: float = _server(
        32.0, REPLICAS, "Concurrent requests a replica should have, for --max-replicas.", gt=0
    )
    ray_address: str | None = _server(
        None, REPLICAS, "A Ray cluster to run on, 'auto' for this machine's; without it, one is started.", "ADDRESS"
    )
    replica_cpus: int | None = _server(
        None, REPLICAS, "Cores (and threads) of each replica; by default an equal share.", ge=1
    )
    replica_gpus: float | None = _server(
        None, REPLICAS, "GPUs of each replica; by default one if the cluster has any.", ge=0
    )
    replica_routing: Literal["prefix", "spread"] = _server(
        "prefix",
        REPLICAS,
        "'prefix': send a session to the replica that has its cache; 'spread': each request to the least loaded.",
    )

    def check_replicas(self) -> None:
        """Refuse options of replicas where there are none: they would change nothing."""
        if self.on_ray:
            return
        for name in ("target_ongoing_requests", "replica_cpus", "replica_gpus", "replica_routing"):
            if getattr(self, name) != type(self).model_fields[name].default:
                option = f"--{name.replace('_', '-')}"
                raise ConfigError(f"{option} is for replicas on Ray: add --replicas N, or leave it out.")

    @property
    def on_ray(self) -> bool:
        """Whether replicas are asked for, one of them or more."""
        return self.replicas > 1 or self.max_replicas is not None or self.ray_address is not None
