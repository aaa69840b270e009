"""Races on a running server: requests with each of its settings, or to it and to a canary server."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from augury.config.errors import ConfigError
from augury.tools.load.dataset import Body
from augury.tools.shared.endpoint import Endpoint
from augury.tools.tune.families import PLAIN_ARM, TOKENS, Arm, ConfigFamily
from augury.tools.tune.race import GroupRun

SERVER, CANARY = "server", "canary"


class AnswerFigures(NamedTuple):
    """Tokens and speculation figures of one answer."""

    tokens: int
    speculation: dict[str, Any]


class LiveRunner:
    """Sends groups of prompts. The server's other traffic continues and disturbs every arm alike."""

    def __init__(
        self, server: Endpoint, canary: Endpoint | None, prompts: Sequence[Body], params: dict[str, Any]
    ) -> None:
        self.server, self.canary = server, canary
        self.prompts, self._params = prompts, params
        self._warm: set[tuple[Arm, int]] = set()

    def families(self, ks: Sequence[int]) -> list[ConfigFamily]:
        """The families that can be tried: the canary server, or every K up to the server's own."""
        if self.canary is not None:
            return [ConfigFamily(CANARY, {}, (0,))]
        live = self.server.live()
        if live is None:
            raise ConfigError(
                f"{self.server.base} takes no settings with a request, as Augury's server does; start a second one "
                "with the settings to try and name it with --canary-url, or ask 'augury advise --url' for a prediction."
            )
        most = int(live["num_spec_tokens"] or 0)
        if not most:
            raise ConfigError(f"{self.server.base} was started without speculative_config; there is nothing to tune.")
        if over := [k for k in ks if k > most]:
            raise ConfigError(f"--tokens {over[0]}: the server was started with at most {most}.")
        usual = {k for k in TOKENS if k < most} | {most}
        return [ConfigFamily(SERVER, {"method": live.get("method")}, tuple(sorted(set(ks) or usual)))]

    def answer(self, arm: Arm, group: Sequence[int]) -> GroupRun:
        """Answer a group's prompts concurrently; an arm's first group of a size is preceded by an untimed warm-up."""
        if (arm, len(group)) not in self._warm:
            self._warm.add((arm, len(group)))
            self._run(arm, group, min(8, self._params["max_tokens"]))
        return self._run(arm, group, self._params["max_tokens"])

    def _run(self, arm: Arm, group: Sequence[int], max_tokens: int) -> GroupRun:
        begun = time.perf_counter()
        with ThreadPoolExecutor(len(group)) as pool:
            replies = list(pool.map(lambda number: self._ask(arm, number, max_tokens), group))
        seconds = time.perf_counter() - begun

        def total(name: str) -> int:
            return sum(int(reply.speculation.get(name) or 0) for reply in replies)

        tokens = sum(reply.tokens for reply in replies)
        if not tokens:
            raise ConfigError(f"{self.server.base} returns empty answers; there is nothing to measure.")
        return GroupRun(
            seconds, tokens, total("num_spec_steps"), total("num_draft_tokens"), total("num_accepted_draft_tokens")
        )

    def _ask(self, arm: Arm, number: int, max_tokens: int) -> AnswerFigures:
        body = dict(self.prompts[number])
        messages = body.pop("messages")
        options = {**body, **self._params}
        options |= {"max_tokens": max_tokens, "seed": number, "stream_options": {"include_usage": True}}
        endpoint = self.server
        if arm.family == CANARY and self.canary is not None:
            endpoint = self.canary
        elif self.canary is None:
            options["speculative"] = {"enabled": False} if arm == PLAIN_ARM else {"num_speculative_tokens": arm.k}
        tokens, chunks = 0, 0
        speculation: dict[str, Any] = {}
        for chunk in endpoint.chat(messages, **{**options, "stream": True}):
            chunks += bool(chunk.get("choices"))
            tokens = (chunk.get("usage") or {}).get("completion_tokens", tokens)
            speculation = (chunk.get("metrics") or {}).get("speculative_decoding") or speculation
        return AnswerFigures(tokens or chunks, speculation)
