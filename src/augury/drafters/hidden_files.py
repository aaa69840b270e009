"""Files of hidden states: written by background threads, whole or not at all, with the names of vLLM's connector."""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

from safetensors.torch import load_file, save_file
from torch import Tensor

from augury.config.errors import ConfigError
from augury.config.sampling import SamplingParams
from augury.config.transfer import HiddenStatesStorage

logger = logging.getLogger("augury")
WISHES = ("hidden_states_path", "include_output_tokens")


def wishes(params: SamplingParams) -> Mapping[str, Any]:
    """What a request asks for: extra_args["kv_transfer_params"]."""
    found = (params.extra_args or {}).get("kv_transfer_params")
    return {} if found is None else found


class HiddenStateFiles:
    """One folder, a few writer threads, and the writes in progress."""

    def __init__(self, storage: HiddenStatesStorage) -> None:
        """Make the folder."""
        self.storage = storage
        self._folder = Path(storage.shared_storage_path)
        self._writers = ThreadPoolExecutor(storage.num_writer_threads, thread_name_prefix="augury-hidden-states")
        self._pending: dict[Path, Future[None]] = {}
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"kv_transfer_config: shared_storage_path={storage.shared_storage_path!r} cannot be made "
                f"({error.strerror}); name another folder."
            ) from None

    def check(self, params: SamplingParams) -> None:
        """Refuse what a request may not ask for, before it runs."""
        asked = wishes(params)
        if not isinstance(asked, Mapping):
            raise ConfigError(f"kv_transfer_params must be a dictionary, got {type(asked).__name__}.")
        for name in asked:
            if name not in WISHES:
                raise ConfigError(f"kv_transfer_params.{name} is unknown; known are {' and '.join(WISHES)}.")
        path = asked.get("hidden_states_path")
        if path is not None and not self.storage.allow_custom_save_path:
            raise ConfigError(
                "kv_transfer_params.hidden_states_path needs allow_custom_save_path in kv_connector_extra_config; "
                "remove it or allow it there."
            )
        if path is not None and (not isinstance(path, str) or not path or params.n > 1):
            raise ConfigError("kv_transfer_params.hidden_states_path must name one file, and n must be 1.")
        if not isinstance(asked.get("include_output_tokens", False), bool):
            raise ConfigError("kv_transfer_params.include_output_tokens must be true or false.")

    def place(self, name: str, params: SamplingParams) -> Path:
        """Where a request's file goes; a name that would lead out of the folder is quoted."""
        custom = wishes(params).get("hidden_states_path")
        return Path(custom) if custom else self._folder / f"{quote(name, safe='')}.safetensors"

    def save(self, path: Path, tensors: dict[str, Tensor]) -> None:
        """Write in the background; the path's lock is held until the file is complete."""
        before = self._pending.get(path)
        lock = self._lock(path) if self.storage.use_synchronization_lock else None
        done = self._writers.submit(_write, path, tensors, lock, before)
        self._pending[path] = done
        done.add_done_callback(lambda future: self._forget(path, future))

    def wait(self, path: Path) -> str | None:
        """Wait until a file is whole; returns the error if it was not written."""
        pending = self._pending.get(path)
        error = pending.exception() if pending is not None else None
        if error is not None:
            self._pending.pop(path, None)
            return f"{path}: {error}"
        return None

    def _forget(self, path: Path, future: Future[None]) -> None:
        error = future.exception()
        if error is not None:
            logger.error("hidden states were not saved to %s: %s", path, error)  # raised when the result is read
        elif self._pending.get(path) is future:
            self._pending.pop(path, None)

    def _lock(self, path: Path) -> IO[str] | None:
        with suppress(OSError):  # the writer will report what is wrong with the folder
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = open(f"{path}.lock", "w")  # noqa: SIM115 (the writer closes it)
            _flock(lock, wait=False)
            return lock
        return None


def _write(path: Path, tensors: dict[str, Tensor], lock: IO[str] | None, before: Future[None] | None) -> None:
    """Write under another name first, so that a process that dies leaves no partial file."""
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        if lock is not None:
            _flock(lock, wait=True)  # held already, unless a reader of an older file was in the way
        if before is not None:
            before.exception()  # an earlier write to the same path: the later one stays
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, draft)
        os.replace(draft, path)
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        if lock is not None:
            lock.close()


def _flock(lock: IO[str], wait: bool) -> None:
    """Take the lock if the system has locks; files are whole or absent without them, too."""
    with suppress(ModuleNotFoundError, OSError):  # Windows, and some network file systems
        import fcntl

        fcntl.flock(lock, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)


def load_hidden_states(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """`hidden_states` and `token_ids` of a file, as soon as its writer has released the lock."""
    with suppress(ModuleNotFoundError, FileNotFoundError):
        import fcntl

        with open(f"{os.fspath(path)}.lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH)
            return load_file(path)
    return load_file(path)


def cleanup_hidden_states(path: str | os.PathLike[str], keep_hidden_states: bool = False) -> None:
    """Remove a file and its lock, or the lock alone."""
    for name in [f"{os.fspath(path)}.lock", *([] if keep_hidden_states else [path])]:
        Path(name).unlink(missing_ok=True)
