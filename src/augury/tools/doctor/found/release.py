"""The vLLM release that a file implies, by an image tag or a pinned install."""

from __future__ import annotations

import re

NUMBER = r"(\d+\.\d+(?:\.\d+)?(?:rc\d+)?)"
TAGGED = re.compile(rf"vllm(?:-openai|-ascend)?[\w/.-]*:v?{NUMBER}")
WITHIN = re.compile(rf":[\w.-]*vllm[_-]?v?{NUMBER}")  # a tag with another numbering that also names vLLM's release
INSTALLED = re.compile(rf"\bvllm(?:\[[\w,-]*\])?\s*==\s*{NUMBER}")
OTHERS = re.compile(
    r"(?:^|/)(?:lmcache/|nvidia/vllm|ai-dynamo/|vllm-runtime)"
)  # images whose tags number their own releases
LONGEST = 500  # letters; an image name has a few hundred at most
CALENDAR = 20  # a first number from here on is a year


def image_release(image: str) -> str | None:
    """The vLLM release of the image a command runs in; None if its tag does not tell."""
    image = image[:LONGEST]
    named = WITHIN.search(image) or (None if OTHERS.search(image) else TAGGED.search(image))
    if named is not None and int(named[1].partition(".")[0]) < CALENDAR:
        return named[1]
    return None


def installed_release(text: str) -> str | None:
    """The release that a file installs."""
    installed = INSTALLED.search(text)
    return installed[1] if installed else None
