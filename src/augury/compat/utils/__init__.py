"""vllm.utils: the parser that scripts hang their own flags on, and request ids."""

from __future__ import annotations

import argparse
import sys
import uuid
from collections.abc import Sequence
from typing import Any


class FlexibleArgumentParser(argparse.ArgumentParser):
    """An argparse parser that takes flags in either spelling: --max_model_len as --max-model-len."""

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> Any:
        """Read the command line."""
        words = [_dashed(word) for word in (sys.argv[1:] if args is None else args)]
        return super().parse_known_args(words, namespace)


def _dashed(word: str) -> str:
    flag, equals, value = word.partition("=")
    return flag.replace("_", "-") + equals + value if flag.startswith("--") else word


def random_uuid() -> str:
    """A random id for a request."""
    return uuid.uuid4().hex
