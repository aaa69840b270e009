"""Builds the runner that answers, engines on this machine or a server, and the families that it can run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from augury.config.errors import ConfigError
from augury.tools.load.dataset import Body
from augury.tools.tune.families import ConfigFamily
from augury.tools.tune.prompts import token_ids
from augury.tools.tune.run import ArmRunner, TunePlan


def local_runner(
    model: str, families: list[ConfigFamily], plan: TunePlan, asked: list[Body]
) -> tuple[ArmRunner, list[ConfigFamily], dict[str, str], dict[str, Any]]:
    """The runner, the families that could be built, why others could not, and the conditions."""
    from augury.model.errors import ModelError
    from augury.tools.bench.plan import find_weights
    from augury.tools.shared.terminal import waiting
    from augury.tools.tune.local import LocalRunner

    directory = find_weights(model, True)[0]
    prompts = token_ids(asked, directory, plan.params["max_tokens"])
    room = max(map(len, prompts)) + plan.params["max_tokens"] + 64
    engine = {"max_model_len": _within(room, directory), "max_num_seqs": max(plan.loads)}
    with waiting("loading the model", lines=True):
        runner = LocalRunner(directory, engine, families, prompts, plan.params)
    kept, left_out = [], {}
    for family in families:
        try:
            with waiting(f"loading {family.name}", lines=True):
                for k in family.ks if family.tree else family.ks[-1:]:
                    runner.build(family, k)
            kept.append(family)
        except (ConfigError, ModelError) as error:
            left_out[family.name] = str(error)
    if not kept:
        raise ConfigError("; ".join(f"{name}: {why}" for name, why in left_out.items()))
    return runner, kept, left_out, {"model": model, "baseline": "plain decoding", **runner.conditions()}


def live_runner(
    url: str, canary_url: str, key: str | None, asked: list[Body], params: dict[str, Any], ks: list[int]
) -> tuple[ArmRunner, list[ConfigFamily], dict[str, Any]]:
    from augury.tools.shared.endpoint import Endpoint
    from augury.tools.tune.live import LiveRunner

    server = Endpoint("URL", url, key)
    canary = Endpoint("--canary-url", canary_url, key) if canary_url else None
    runner = LiveRunner(server, canary, asked, params)
    baseline = f"{server.base} as it runs" if canary else "the same server with speculation off"
    conditions = {"model": server.model, "url": server.base, "baseline": baseline, "traffic": traffic(server.base, key)}
    return runner, runner.families(ks), conditions | ({"canary_url": canary.base} if canary else {})


def traffic(url: str, key: str | None) -> dict[str, float] | None:
    """Acceptance of the server's traffic so far, to compare our prompts with; None if there is none to read."""
    from augury.tools.live.reading import readings
    from augury.tools.live.scrape import scrape
    from augury.tools.live.window import window
    from augury.tools.shared.http import Server, Unreadable

    try:
        drafting = [window(None, reading).drafting for reading in readings(scrape(Server(url, key))).values()]
    except Unreadable:
        return None
    drafts, drafted = sum(one.drafts for one in drafting), sum(one.drafted for one in drafting)
    accepted = sum(one.accepted for one in drafting)
    if not drafted:
        return None
    return {
        "drafts": drafts,
        "draft_acceptance_rate": round(accepted / drafted, 4),
        "mean_acceptance_length": round(1 + accepted / drafts, 4),
    }


def _within(room: int, directory: str) -> int:
    from augury.model.checkpoint import read_config

    return int(min(room, read_config(Path(directory), quantised=True).max_position_embeddings))
