"""`python -m augury.compat script.py ...`: run a script written for vLLM, with `vllm` meaning `augury.compat`."""

from __future__ import annotations

import runpy
import sys

from augury.compat.alias import install


def main() -> None:
    """Run the script named on the command line, or the module after -m, with the arguments that follow."""
    words = sys.argv[1:]
    if not words or words[0] in ("-h", "--help"):
        sys.exit("usage: python -m augury.compat SCRIPT.py [ARGUMENTS], or: python -m augury.compat -m MODULE ...")
    install()
    if words[0] == "-m" and words[1:]:
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    main()
