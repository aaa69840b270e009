"""`augury serve --replicas`: what is refused before Ray is asked for anything."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from augury.cli import app
from augury.serve.options import ServerOptions
from augury.tools.run import serve


def test_without_ray_the_way_to_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "find_spec", lambda _: None)
    result = CliRunner().invoke(app, ["serve", "default", "--replicas", "2"])
    assert result.exit_code == 2 and "pip install 'augury[ray]'" in result.output


def test_a_socket_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "find_spec", lambda _: object())
    result = CliRunner().invoke(app, ["serve", "default", "--replicas", "2", "--uds", "x.sock"])
    assert result.exit_code == 2 and "--uds" in result.output


def test_fewer_at_most_than_at_first_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "find_spec", lambda _: object())
    result = CliRunner().invoke(app, ["serve", "default", "--replicas", "2", "--max-replicas", "1"])
    assert result.exit_code == 2 and "fewer than --replicas 2" in result.output


@pytest.mark.parametrize(
    "words",
    [
        ["--replica-cpus", "1"],
        ["--replica-gpus", "0.5"],
        ["--replica-routing", "spread"],
        ["--target-ongoing-requests", "8"],
    ],
)
def test_options_of_replicas_are_refused_where_there_are_none(words: list[str]) -> None:
    result = CliRunner().invoke(app, ["serve", "default", *words])
    assert result.exit_code == 2 and f"{words[0]} is for replicas" in result.output and "--replicas N" in result.output


@pytest.mark.parametrize(
    ("given", "on_ray"),
    [({}, False), ({"replicas": 2}, True), ({"max_replicas": 1}, True), ({"ray_address": "auto"}, True)],
)
def test_one_process_stays_one_process(given: dict[str, object], on_ray: bool) -> None:
    assert ServerOptions(**given).on_ray is on_ray  # type: ignore[arg-type]
