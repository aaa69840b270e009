"""Kernels compiled once for all integers, and taken from numba's cache without what only a compiler needs.

Before it loads a function numba imports and registers all that compiled code could ever call: a sixth of a second and 8
MB for code that is compiled already. A compiler does the same for itself when it begins, so for our own kernels it is
left out; other people's functions are loaded as ever.

A function that is called with a constant would be compiled for that constant, too, and so would one whose argument
begins as one: `r = 0` before a loop compiles all that the loop calls with r twice over.
"""

from __future__ import annotations

from typing import Any

OURS = "augury."


def compile_once() -> None:
    """Have numba compile our functions once for all integers, not again for each constant; call once."""
    try:
        from numba.core.dispatcher import Dispatcher
        from numba.core.types import unliteral

        usual = Dispatcher.get_call_template
    except (ImportError, AttributeError):
        return

    def get_call_template(self: Any, args: Any, kws: Any) -> Any:
        if not is_ours(self.py_func):
            return usual(self, args, kws)
        return usual(self, tuple(map(unliteral, args)), {name: unliteral(kind) for name, kind in kws.items()})

    if usual.__module__ != __name__:  # not yet exchanged
        Dispatcher.get_call_template = get_call_template  # type: ignore[method-assign]


def is_ours(function: Any) -> bool:
    """Whether a function that numba compiles is one of our kernels."""
    return str(getattr(function, "__module__", "")).startswith(OURS)


def load_lightly() -> None:
    """Load our cached code without setting up a compiler; call once, before kernels are declared.

    A numba that works otherwise is left as it is.
    """
    try:
        from numba.core.caching import Cache
        from numba.core.runtime import rtsys

        usual, inner = Cache.load_overload, Cache._load_overload
    except (ImportError, AttributeError):
        return

    def load_overload(self: Any, sig: Any, target_context: Any) -> Any:
        if not is_ours(self._py_func):
            return usual(self, sig, target_context)
        rtsys.initialize(target_context)  # compiled code allocates its arrays by it
        with self._guard_against_spurious_io_errors():
            return inner(self, sig, target_context)

    if usual.__qualname__ == "Cache.load_overload":  # not yet exchanged
        Cache.load_overload = load_overload  # type: ignore[method-assign]
