"""`augury models`: list, fetch and check what is in the cache."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from augury.model import store
from augury.model.errors import ModelError
from augury.model.scratch import sha256_of

# what 'default' leaves in the cache: the download, and the directory named after its content
_DEFAULT_NAMES = {store.DEFAULT_FILE, f"{Path(store.DEFAULT_FILE).stem}-{store.DEFAULT_SHA256[:12]}"}


def pull(name: str, quiet: bool) -> tuple[Path, bool]:
    """Fetch a model; returns its path and whether it is ready to run."""
    if name == store.DEFAULT and find_spec("gguf") is None:
        return store.pull_default(quiet=quiet), False  # converting it needs the engine
    return store.resolve(name, quiet=quiet), True


def verify(name: str) -> list[Path]:
    """Check a model's files against their checksums and return their paths; a ModelError if one is damaged."""
    found = entries_of(name)
    for entry in found:
        if entry.kind == "converted":
            store.verify(entry.path)
        elif entry.name == store.DEFAULT_FILE and sha256_of(entry.path) != store.DEFAULT_SHA256:
            raise ModelError(
                f"{entry.path}: damaged; `augury models remove default`, then `augury models pull default`."
            )
    return [entry.path for entry in found]


def entries_of(name: str) -> list[store.CachedModel]:
    """The cache entries that a name refers to; 'default' is the download and its conversion."""
    names = _DEFAULT_NAMES if name == store.DEFAULT else {name}
    found = [entry for entry in store.entries() if entry.name in names]
    if not found:
        hint = "`augury models pull default` fetches it" if name == store.DEFAULT else "`augury models` lists what is"
        raise ModelError(f"{name}: not in the cache; {hint}.")
    return sorted(found, key=lambda entry: entry.kind, reverse=True)  # the download, then its conversion
