"""vLLM's releases, as far as speculative_config changed with them."""

from __future__ import annotations

import re

from augury.config.errors import ConfigError

OLDEST = "0.8.2"  # the first release with --speculative-config, and with the dictionary
NEWEST = "0.32"  # the release our facts were read from
IGNORED_SILENTLY = ("0.9.1", "0.16")  # in between vLLM dropped unknown keys without a word

Version = tuple[int, int, int]


def version(text: str, name: str = "--as-of") -> Version:
    """A release as numbers: "0.21", "v0.21.3" and "0.32.0rc1" are understood."""
    found = re.fullmatch(r"v?(\d+)\.(\d+)(?:\.(\d+))?(?:[-.+]?(?:rc|post|dev|a|b)\d*)?", text.strip())
    if not found:
        raise ConfigError(f"{name}={text!r} is not a vLLM release; write for example {NEWEST}.")
    major, minor, patch = (int(part or 0) for part in found.groups())
    return major, minor, patch


def release(text: str) -> Version:
    """A release the user names; those from before speculative_config are refused."""
    wanted = version(text)
    if wanted < version(OLDEST):
        raise ConfigError(f"--as-of={text!r}: speculative_config begins with vLLM {OLDEST}; name that or a later one.")
    return wanted


def valid_in(wanted: Version, since: str, until: str | None) -> bool:
    """Whether a release lies in [since, until)."""
    return version(since) <= wanted and (until is None or wanted < version(until))
