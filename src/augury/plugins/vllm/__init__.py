"""Augury's parts inside vLLM, which finds them by entry point; docs/vllm-plugin.md says what each one does."""

from __future__ import annotations


def register() -> None:
    """Put the hooks in place; vLLM calls this in each of its processes before it reads its configuration."""
    from augury.plugins.vllm.hooks import install

    install()
