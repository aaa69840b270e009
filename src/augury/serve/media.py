"""Pictures, sound and files in messages: refused by name, since targets here read text alone."""

from __future__ import annotations

KINDS = {
    "image": "images",
    "image_url": "images",
    "input_image": "images",
    "image_pil": "images",
    "image_embeds": "images",
    "audio_url": "audio",
    "input_audio": "audio",
    "video_url": "video",
    "file": "files",
    "input_file": "files",
    "document": "files",
}  # by OpenAI's, Anthropic's and vLLM's names for parts of a message
WHY = "only text is: no encoder runs here that would turn them into tokens. Leave the part out, or describe it in text."


def refusal(kind: object, where: str, parts: str = "parts") -> str | None:
    """Why a part of this type is refused; None if it is text or unknown."""
    what = KINDS.get(kind) if isinstance(kind, str) else None
    return None if what is None else f"{where}: {parts} of type {kind!r} ({what}) are not read; {WHY}"
