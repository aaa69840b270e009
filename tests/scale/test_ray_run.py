"""`augury serve --replicas`: what is told in one line, and what happens before the replicas are ready."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

pytest.importorskip("ray", reason="needs Ray: pip install 'augury[ray]'")

import ray
from ray import serve

from augury.scale import ray_run
from augury.serve.options import ServerOptions
from augury.serve.server import ServeError
from augury.serve.settings import settings_of


class Asked:
    """A cluster of two cores in place of Ray; `done` holds what was asked of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Replace what the program calls."""
        self.done: list[str] = []
        monkeypatch.setattr(ray, "init", self.note("init"))
        monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 2.0})
        monkeypatch.setattr(ray, "shutdown", self.note("leave"))
        for name in ("start", "run", "delete", "shutdown"):
            monkeypatch.setattr(serve, name, self.note(name))

    def note(self, name: str) -> Any:
        """A function that notes that it was called."""
        return lambda *_, **__: self.done.append(name)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Any:
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield Asked(monkeypatch)
    for number, handler in kept.items():
        signal.signal(number, handler)


def run(**given: Any) -> None:
    options = ServerOptions(**given)
    settings = settings_of("default", {}, options)
    settings.port = 0
    ray_run.run(settings, options)


def test_too_many_replicas_are_told_and_a_running_application_stays(asked: Asked) -> None:
    with pytest.raises(ServeError, match="8 replicas of 1 CPU need more than the cluster's 2"):
        run(replicas=8, ray_address="auto")
    assert asked.done == ["init", "leave"]


@pytest.mark.parametrize("error", [ValueError, ConnectionError, RuntimeError])
def test_an_address_where_no_cluster_is_is_told(
    asked: Asked, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def refuse(**_: Any) -> None:
        raise error("nobody\nthere")

    monkeypatch.setattr(ray, "init", refuse)
    with pytest.raises(ServeError, match="--ray-address nonsense: nobody there"):
        run(replicas=2, ray_address="nonsense")
    assert asked.done == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_told_to_end_it_does_not_wait_for_replicas_to_start(
    asked: Asked, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    def slow_start(*_: Any, **__: Any) -> None:
        os.kill(os.getpid(), number)
        asked.done.append("ready")

    monkeypatch.setattr(serve, "run", slow_start)
    run(replicas=2)
    assert asked.done == ["init", "start", "delete", "shutdown", "leave"]
