"""A setting that cannot be used, and how to say so."""

from __future__ import annotations


class ConfigError(ValueError):
    """A setting that cannot be used; the message is one line that names the setting and the fix."""


def shown(value: object) -> str:
    """A value for a message, cut where it would fill the screen."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def problem(key: str, value: object, says: str) -> ConfigError:
    """An error about one key of speculative_config."""
    return ConfigError(f"speculative_config.{key}={shown(value)} {says}.")
