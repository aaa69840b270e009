"""Which vLLM release a file means: by the tag of an image, or by a pinned install."""

from __future__ import annotations

import re

NUMBER = r"(\d+\.\d+(?:\.\d+)?(?:rc\d+)?)"
TAGGED = re.compile(rf"vllm(?:-openai|-ascend)?[\w/.-]*:v?{NUMBER}")
WITHIN = re.compile(rf":[\w.-]*vllm[_-]?v?{NUMBER}")  # a tag that counts something else and names vLLM's beside it
INSTALLED = re.compile(rf"\bvllm(?:\[[\w,-]*\])?\s*==\s*{NUMBER}")
OTHERS = re.compile(
    r"(?:^|/)(?:lmcache/|nvidia/vllm|ai-dynamo/|vllm-runtime)"
)  # images whose tags count releases of their own
LONGEST = 500  # letters; the name of an image has some hundred at most
CALENDAR = 20  # a first number from here on is a year


def image_release(image: str) -> str | None:
    """The release of the image a command runs in."""
    image = image[:LONGEST]
    named = WITHIN.search(image) or (None if OTHERS.search(image) else TAGGED.search(image))
    if named is not None and int(named[1].partition(".")[0]) < CALENDAR:
        return named[1]
    return None


def installed_release(text: str) -> str | None:
    """The release that a file installs."""
    installed = INSTALLED.search(text)
    return installed[1] if installed else None
