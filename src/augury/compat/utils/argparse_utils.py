"""vllm.utils.argparse_utils."""

from augury.compat.utils import FlexibleArgumentParser

__all__ = ["FlexibleArgumentParser"]
