"""Renders chat templates with jinja2 alone, to the same text as transformers; None where transformers does more.

Templates are untrusted code: as in transformers they run in jinja2's immutable sandbox, and get plain JSON values only.
"""

from __future__ import annotations

import json
import re
from datetime import datetime
from functools import lru_cache
from typing import Any

# transformers guards `namespace` and `dict` and counts what `generation` encloses
GUARDED = re.compile(r"\b(namespace|dict|generation)\b")
UNDERSTOOD = {"chat_template", "add_generation_prompt", "continue_final_message", "tools", "documents", "tokenize"}
OTHER_OPTIONS = {  # of apply_chat_template itself: not the template's variables
    "conversation",
    "conversations",
    "sanitize_control_tokens",
    "padding",
    "truncation",
    "max_length",
    "return_tensors",
    "return_dict",
    "return_assistant_tokens_mask",
    "tokenizer_kwargs",
    "messages",
    "self",
}
REASONING = {"reasoning_content", "thinking", "reasoning"}  # transformers fills each from the others


def render(own: str | None, special: dict[str, str], conversation: Any, options: dict[str, Any]) -> str | None:
    """The text that transformers' `apply_chat_template(conversation, tokenize=False, ...)` gives.

    `own` is the model's template and `special` are its named tokens, which templates may write.
    """
    template = options.get("chat_template")
    template = own if template is None else template
    if not isinstance(template, str) or GUARDED.search(template) or not _ordinary(conversation, options):
        return None
    values = {name: value for name, value in options.items() if name not in UNDERSTOOD}
    text: str = _compiled(template).render(
        messages=conversation,
        tools=options.get("tools"),
        documents=options.get("documents"),
        add_generation_prompt=options.get("add_generation_prompt", False),
        **{**special, **values},
    )
    return text


def _ordinary(conversation: Any, options: dict[str, Any]) -> bool:
    """Whether transformers would pass all of this to the template unchanged."""
    if options.get("tokenize", True) or options.get("continue_final_message") or options.keys() & OTHER_OPTIONS:
        return False
    if not isinstance(conversation, list) or not conversation:
        return False
    if not all(type(message) is dict and not message.keys() & REASONING for message in conversation):
        return False
    for name in ("tools", "documents"):
        listed = options.get(name)
        if listed is not None and not (type(listed) is list and all(type(one) is dict for one in listed)):
            return False
    return all(map(_plain, (conversation, options)))


def _plain(value: Any) -> bool:
    if value is None or type(value) in (str, int, float, bool):
        return True
    if type(value) is list:
        return all(map(_plain, value))
    return type(value) is dict and all(type(key) is str and _plain(item) for key, item in value.items())


@lru_cache(maxsize=16)
def _compiled(template: str) -> Any:
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = _now
    return environment.from_string(template)


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """The filter `tojson`, without the HTML escapes of jinja2's own."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> None:
    from jinja2.exceptions import TemplateError

    raise TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)
