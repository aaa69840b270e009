"""What `--collect` writes: a file for each tenant, up to a number of tokens, and never at the cost of an answer."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from queued import make_request

from augury.config.errors import ConfigError
from augury.config.sampling import SamplingParams
from augury.serve import collecting
from augury.serve.collecting import Collector
from augury.serve.controls import Controls, with_drafter
from augury.serve.errors import ApiError


def ended(tokens: int, tenant: str = "", reason: str | None = "stop", **params: Any) -> Any:
    asked = SamplingParams(extra_args={"cache_salt": tenant} if tenant else None, **params)
    request = make_request(1, list(range(3)))
    request.params = asked
    request.tokens = list(range(tokens))
    request.finish_reason = reason
    return request


def lines(folder: Path) -> dict[str, list[dict[str, Any]]]:
    return {file.stem: [json.loads(line) for line in file.open()] for file in folder.glob("*.jsonl")}


def test_every_tenant_has_a_file_of_its_own(toy_model: Path, tmp_path: Path) -> None:
    collector = Collector(tmp_path / "new", 1000, toy_model)
    for tenant in ("a", "b", "a", ""):
        collector.keep(ended(10, tenant))
    found = lines(tmp_path / "new")
    assert sorted(len(one) for one in found.values()) == [1, 1, 2]
    assert len(found["everyone"]) == 1
    assert not {"a", "b"} & found.keys()  # a salt may be a secret


def test_a_salt_for_every_request_costs_neither_descriptors_nor_files(
    toy_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collecting, "FILES", 40)
    collector = Collector(tmp_path, 100_000, toy_model)
    for number in (*range(50), 0, 49):
        collector.keep(ended(10, f"salt {number}"))
    before = lines(tmp_path)
    assert len(before) == 41 and len(before["others"]) == 11 and len(collector._files) == collecting.OPEN
    again = Collector(tmp_path, 100_000, toy_model)
    again.keep(ended(10, "salt 1"))
    again.keep(ended(10, "salt 99"))
    after = lines(tmp_path)
    assert after.keys() == before.keys() and len(after["others"]) == 12
    assert sum(map(len, after.values())) == 54


def test_there_is_a_cap_which_a_restart_remembers(toy_model: Path, tmp_path: Path) -> None:
    collector = Collector(tmp_path, 25, toy_model)
    for _ in range(4):
        collector.keep(ended(10))
    assert len(lines(tmp_path)["everyone"]) == 2
    again = Collector(tmp_path, 35, toy_model)
    for _ in range(4):
        again.keep(ended(10))
    assert len(lines(tmp_path)["everyone"]) == 3


def test_only_whole_answers_and_how_they_were_drawn(toy_model: Path, tmp_path: Path) -> None:
    collector = Collector(tmp_path, 1000, toy_model)
    collector.keep(ended(10, reason="abort"))
    collector.keep(ended(10, reason="length", temperature=0.0))
    collector.keep(ended(9, temperature=0.7))
    assert [(len(one["tokens"]), one["start"], one["sampled"]) for one in lines(tmp_path)["everyone"]] == [
        (10, 3, False),
        (9, 3, True),
    ]


def test_answers_of_two_targets_are_not_mixed(toy_model: Path, tmp_path: Path) -> None:
    (tmp_path / "about.json").write_text(json.dumps({"target": "other", "fingerprint": "x"}))
    with pytest.raises(ConfigError, match="holds answers of other"):
        Collector(tmp_path, 1000, toy_model)


@pytest.mark.parametrize("about", ["", "[1]", "null", '{"target": "to'])
def test_a_directory_that_does_not_say_whose_answers_it_holds(about: str, toy_model: Path, tmp_path: Path) -> None:
    (tmp_path / "about.json").write_text(about)
    with pytest.raises(ConfigError, match=r"about\.json cannot be read.*remove it"):
        Collector(tmp_path, 1000, toy_model)


def test_a_disk_that_fails_ends_it_quietly(
    toy_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    collector = Collector(tmp_path, 1000, toy_model)
    monkeypatch.setattr("os.open", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    collector.keep(ended(10))
    collector.keep(ended(10))
    assert caplog.text.count("No space left on device") == 1


class Writer:
    def write(self, data: bytes) -> None:
        """Nobody reads it."""


def test_one_order_at_a_time_and_none_is_left_waiting() -> None:
    async def run() -> None:
        controls, writer = Controls(), Writer()
        first = asyncio.create_task(controls.ask(writer, {"type": "swap"}))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        with pytest.raises(ApiError, match="something else is being loaded"):
            await controls.ask(writer, {"type": "swap"})  # type: ignore[arg-type]
        controls.answered({"drafter": "a"})
        assert (await first)["drafter"] == "a"
        second = asyncio.create_task(controls.ask(writer, {"type": "swap"}))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        controls.fail()
        with pytest.raises(ApiError, match="died"):
            await second

    asyncio.run(run())


def test_a_restart_is_told_of_the_drafter_and_the_settings_stay() -> None:
    start = {"type": "start", "arguments": {"speculative_config": {"method": "eagle3"}, "seed": 1}}
    changed = with_drafter(start, "b")["arguments"]
    assert changed == {"speculative_config": {"method": "eagle3", "model": "b"}, "seed": 1}
    assert start["arguments"] == {"speculative_config": {"method": "eagle3"}, "seed": 1}
