"""Files that somebody names: replaced at once where they are files, written through where they are not."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from augury.config.facts import read_facts
from augury.config.files import read_regular, write_text
from augury.methods.errors import ConfigError
from augury.model.errors import ModelError
from augury.model.heads.files import read_raw_config


def test_a_file_changes_at_once_and_keeps_its_mode(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    write_text(file, "one")
    file.chmod(0o640)
    before = file.stat().st_ino
    write_text(file, "two")
    assert file.read_text() == "two" and stat.S_IMODE(file.stat().st_mode) == 0o640 and file.stat().st_ino != before
    assert os.listdir(tmp_path) == ["a.json"]


def test_links_stay_links(tmp_path: Path) -> None:
    there, link = tmp_path / "there.json", tmp_path / "link.json"
    link.symlink_to("there.json")
    for text in ("dangling", "filled"):
        write_text(link, text)
        assert link.is_symlink() and there.read_text() == text


def test_a_pipe_is_written_through(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    write_text(pipe, "through")
    reader.join(10)
    assert read == ["through"] and stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_device_stays_one() -> None:
    for device in (Path("/dev/full"), Path("/dev/null")):
        if not device.exists():
            pytest.skip(f"no {device} here")
    write_text(Path("/dev/null"), "gone")
    with pytest.raises(OSError, match="No space left"):
        write_text(Path("/dev/full"), "too much")
    assert stat.S_ISCHR(Path("/dev/full").stat().st_mode) and stat.S_ISCHR(Path("/dev/null").stat().st_mode)


def test_an_open_file_named_by_its_number_is_added_to(tmp_path: Path) -> None:
    """Replacing it would leave whoever opened it writing into a file without a name."""
    with (tmp_path / "out").open("w") as file:
        file.write("before ")
        file.flush()
        write_text(Path(f"/dev/fd/{file.fileno()}"), "after")
        assert (tmp_path / "out").read_text() == "before after"
        assert os.fstat(file.fileno()).st_ino == (tmp_path / "out").stat().st_ino


def test_a_file_in_shared_memory_is_a_file() -> None:
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("no /dev/shm here")
    file = Path(f"/dev/shm/augury-{os.getpid()}.json")
    try:
        write_text(file, "one")
        write_text(file, "two")
        assert file.read_text() == "two"
    finally:
        file.unlink(missing_ok=True)


def test_a_directory_is_an_error_and_nothing_is_left_behind(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        write_text(tmp_path, "text")
    with pytest.raises(FileNotFoundError):
        write_text(tmp_path / "nowhere" / "a.json", "text")
    assert not os.listdir(tmp_path)


def test_a_pipe_is_no_configuration(tmp_path: Path) -> None:
    """Nobody writes to it: whoever opens it as a file waits for ever."""
    said: list[str] = []

    def look() -> None:
        for read in (lambda: read_regular(tmp_path / "config.json", 10), lambda: read_facts(str(tmp_path))):
            with pytest.raises(ConfigError, match="not a regular file"):
                read()
        with pytest.raises(ModelError, match="not a regular file"):
            read_raw_config(tmp_path)
        said.append("all")

    os.mkfifo(tmp_path / "config.json")
    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    looking.join(10)
    assert said == ["all"]


def test_a_regular_file_is_read_up_to_its_most(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    (tmp_path / "b").symlink_to("a")
    assert read_regular(tmp_path / "b", 5) == b"12345"
    with pytest.raises(ConfigError, match="more than 4 bytes"):
        read_regular(tmp_path / "a", 4)
    with pytest.raises(FileNotFoundError):
        read_regular(tmp_path / "c", 4)
