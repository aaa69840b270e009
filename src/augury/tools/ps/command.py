"""`augury ps`: the servers that run on this machine, and their load."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any

import typer

from augury.config.files import cache_dir
from augury.observe.running import running
from augury.tools.ps.screen import show
from augury.tools.shared.http import Server
from augury.tools.shared.options import Json
from augury.tools.shared.terminal import print_json


def ps(
    api_key: Annotated[
        str | None, typer.Option(envvar="AUGURY_API_KEY", help="The server's API key, if it needs one.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List your servers on this machine: address, uptime, model and load."""
    found = running(cache_dir() / "running")
    with ThreadPoolExecutor(16) as pool:
        servers = list(pool.map(lambda one: described(one, api_key), found))
    if as_json:
        print_json({"servers": servers})
    else:
        show(servers)


def described(record: dict[str, Any], key: str | None) -> dict[str, Any]:
    """A server's record with its current load and acceptance, which are None if it does not answer."""
    known: dict[str, Any] = {
        **record,
        "uptime": round(time.time() - float(record.get("started", time.time()))),
        "running": None,
        "waiting": None,
        "acceptance_rate": None,
    }
    live = Server(str(record["url"]), key).json("/augury/live") if record.get("url") else None
    if not isinstance(live, dict) or not isinstance(buckets := live.get("buckets"), list) or not buckets:
        return known
    drafted, accepted = (sum(int(one.get(name) or 0) for one in buckets) for name in ("drafted", "accepted"))
    last = buckets[-1]
    rate = accepted / drafted if drafted else None
    return {**known, "running": last.get("running"), "waiting": last.get("waiting"), "acceptance_rate": rate}
