"""vLLM's releases, as far as speculative_config changed with them."""

from __future__ import annotations

from functools import cache

from packaging.version import InvalidVersion, Version

from augury.config.errors import ConfigError

__all__ = ["IGNORED_SILENTLY", "NEWEST", "OLDEST", "Version", "beyond_newest", "release", "valid_in", "version"]

OLDEST = "0.8.2"  # the first release with --speculative-config, and with the dictionary
NEWEST = "0.32"  # the release our facts were read from
IGNORED_SILENTLY = ("0.9.1", "0.16")  # in between vLLM dropped unknown keys without a word


@cache
def version(text: str, name: str = "--as-of") -> Version:
    """A release by its number; a pre-release such as "v0.32.0rc1" counts as the release it leads to."""
    try:
        found = Version(text)
        if not 2 <= len(found.release) <= 4:  # 0.10.1.1 is one
            raise InvalidVersion(text)
    except InvalidVersion:
        raise ConfigError(f"{name}={text!r} is not a vLLM release; write for example {NEWEST}.") from None
    return Version(found.base_version)


def release(text: str) -> Version:
    """A release the user names; those before speculative_config are refused."""
    wanted = version(text)
    if wanted < version(OLDEST):
        raise ConfigError(f"--as-of={text!r}: speculative_config begins with vLLM {OLDEST}; name that or a later one.")
    return wanted


def valid_in(wanted: Version, since: str, until: str | None) -> bool:
    """Whether a release lies in [since, until)."""
    return version(since) <= wanted and (until is None or wanted < version(until))


def beyond_newest(wanted: Version) -> bool:
    """Whether a release is newer than the facts; patches of the newest one are not."""
    return wanted.release[:2] > version(NEWEST).release[:2]
