"""`augury doctor serve`: a validating admission webhook."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from augury.config.errors import ConfigError
from augury.tools.doctor.examine import check_release
from augury.tools.doctor.webhook.app import FailurePolicy, Webhook
from augury.tools.doctor.webhook.certificate import Certificate
from augury.tools.doctor.webhook.http import WebhookListener
from augury.tools.doctor.webhook.review import FailOn
from augury.tools.doctor.webhook.workers import Workers

RENEWAL = 30.0  # seconds between checks of the certificate
PLAIN_HOSTS = ("127.0.0.1", "localhost", "::1")


def serve(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "0.0.0.0",  # noqa: S104, in a pod of its own
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes any that is free.")] = 8443,
    tls_cert: Annotated[Path | None, typer.Option(metavar="FILE", help="Certificate chain, PEM.")] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE", help="Its key, PEM.")] = None,
    fail_on: Annotated[FailOn, typer.Option(help="Severity at which an object is refused.")] = "error",
    vllm_version: Annotated[
        str | None,
        typer.Option(metavar="VERSION", help="The vLLM release where the image names none; default: the newest known."),
    ] = None,
    skip_namespace: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Allow everything there; may be repeated.")
    ] = None,
    failure_policy: Annotated[
        FailurePolicy, typer.Option(help="An object that cannot be checked: allow it with a warning, or refuse it.")
    ] = "ignore",
    time_limit: Annotated[float, typer.Option(min=0.1, max=25, help="Maximum seconds for one object.")] = 5,
    max_bytes: Annotated[int, typer.Option(min=1024, help="Largest review.")] = 8_000_000,
    workers: Annotated[
        int, typer.Option(min=1, max=64, help="Objects checked concurrently, each in its own process.")
    ] = 2,
) -> None:
    """Answer AdmissionReviews: refuse Kubernetes objects whose vllm command has an error, warn about the rest."""
    release = check_release(vllm_version) if vllm_version is not None else None
    certificate = _certificate(tls_cert, tls_key, host)
    pool = Workers(workers, time_limit)
    try:
        pool.wait()
        hook = Webhook(pool, fail_on, failure_policy, release, tuple(skip_namespace or ()))
        asyncio.run(_run(WebhookListener(hook.reply, max_bytes), host, port, certificate))
    except OSError as error:
        raise ConfigError(f"--host {host} --port {port}: {error.strerror or error}.") from None
    finally:
        pool.close()


def _certificate(certificate: Path | None, key: Path | None, host: str) -> Certificate | None:
    if certificate is not None and key is not None:
        return Certificate(certificate, key)
    if certificate is not None or key is not None:
        raise ConfigError("--tls-cert and --tls-key belong together; give both.")
    if host not in PLAIN_HOSTS:
        raise ConfigError("the API server speaks TLS alone: give --tls-cert and --tls-key (or --host 127.0.0.1).")
    return None


async def _run(listener: WebhookListener, host: str, port: int, certificate: Certificate | None) -> None:
    """Serve until the process is asked to end."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, ended.set)
    port = await listener.start(host, port, certificate.context if certificate else None)
    scheme = "https" if certificate else "http"
    print(
        f"augury doctor serves {scheme}://{host}:{port}/validate (process {os.getpid()})", file=sys.stderr, flush=True
    )
    while not ended.is_set():
        try:
            await asyncio.wait_for(ended.wait(), RENEWAL)
        except TimeoutError:
            if certificate is not None and certificate.renew():
                print("the certificate was renewed", file=sys.stderr, flush=True)
    await listener.stop()
