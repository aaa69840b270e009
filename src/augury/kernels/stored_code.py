"""Compiled kernels taken from numba's cache without what only a compiler needs.

Before it loads a function numba imports and registers all that compiled code could ever call: a sixth of a second and 8
MB for code that is compiled already. A compiler does the same for itself when it begins, so for our own kernels it is
left out; other people's functions are loaded as ever.
"""

from __future__ import annotations

from typing import Any

OURS = "augury."


def load_lightly() -> None:
    """To be called once, before kernels are declared; a numba that works otherwise is left as it is."""
    try:
        from numba.core.caching import Cache
        from numba.core.runtime import rtsys

        usual, inner = Cache.load_overload, Cache._load_overload
    except (ImportError, AttributeError):
        return

    def load_overload(self: Any, sig: Any, target_context: Any) -> Any:
        if not str(getattr(self._py_func, "__module__", "")).startswith(OURS):
            return usual(self, sig, target_context)
        rtsys.initialize(target_context)  # compiled code allocates its arrays by it
        with self._guard_against_spurious_io_errors():
            return inner(self, sig, target_context)

    if usual.__qualname__ == "Cache.load_overload":  # not yet exchanged
        Cache.load_overload = load_overload  # type: ignore[method-assign]
