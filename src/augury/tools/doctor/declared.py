"""Keys, values and flags that a release does not know, read from their own declarations in config/."""

from __future__ import annotations

from typing import Any

from augury.config.history import OLD_VALUES
from augury.config.keys import OWN, ConfigKey
from augury.config.read import KEYS
from augury.config.releases import forgives
from augury.config.versions import Version, valid_in, version
from augury.methods.registry import readers
from augury.plugins.vllm.names import CLASSES
from augury.tools.doctor.arguments import ReadArguments, WrittenKey
from augury.tools.doctor.flags import FLAG_SINCE
from augury.tools.doctor.found.places import Edit
from augury.tools.doctor.problems import Problem

SCHEDULES_SINCE = "0.24"


def declared_problems(
    args: ReadArguments, release: Version, text: str, plugged: bool = False
) -> tuple[list[Problem], dict[str, Any]]:
    """Problems with keys that the release refuses or drops, and the remaining keys; plugged: Augury is installed."""
    problems, left = [], {}
    for name, setting in args.keys.items():
        if _by_plugin(name, setting, args, plugged):
            continue  # config/ describes plain vLLM, which would refuse it
        found = _key(name, setting, args, release, text)
        if found is None:
            left[name] = setting.value
        else:
            problems.append(found)
            new = replacement(name, setting, args, release) if found.name == "key-gone" else None
            left |= {new[0]: new[1]} if new else {}
    return problems, left


def flag_problems(args: ReadArguments, release: Version) -> list[Problem]:
    """Flags that were introduced after this release."""
    problems = []
    for flag in args.flags:
        since = FLAG_SINCE.get("-sc" if flag.written.startswith("-sc") else f"--{flag.name}")
        if since and not valid_in(release, since, None) and args.found.settings is None:
            edits = [Edit(flag.start, flag.start + 3, "--speculative-config")] if flag.written[:3] == "-sc" else []
            says = {"flag": flag.written, "since": since}
            problems.append(Problem("flag-too-new", flag.start, flag.end, says, edits))
    return problems


def _key(name: str, setting: WrittenKey, args: ReadArguments, release: Version, text: str) -> Problem | None:
    known = KEYS.get(name)
    if known is None:
        if not forgives(text) or name == "tensor_parallel_size":
            return None  # config/resolve.py reports it, with the nearest known key
        return _problem("key-ignored", name, setting, {"instead": "it is not a key"}, setting.drop())
    if known.since == OWN or not valid_in(release, known.since, known.until):
        return _outside(known, name, setting, args, release, text)  # even if its value is null
    window = known.values.get(setting.value) if isinstance(setting.value, str) else None
    if window is not None and (window[0] == OWN or not valid_in(release, *window)):
        return _value(name, setting, window, args, release)
    return None


def _outside(
    known: ConfigKey, name: str, setting: WrittenKey, args: ReadArguments, release: Version, text: str
) -> Problem:
    says = {"since": known.since, "until": known.until or "", "instead": _when(known)}
    if forgives(text):
        return _problem("key-ignored", name, setting, says, setting.drop())
    if known.since == OWN:
        return _problem("key-augury-only", name, setting, says, setting.drop())
    if release < version(known.since):
        return _problem("key-too-new", name, setting, says, setting.drop())
    says["instead"] = _instead(known.instead_there)
    return _problem("key-gone", name, setting, says, _renewed(name, setting, args, release))


def _instead(words: str) -> str:
    if not words or words.startswith(("nothing", "remove")):
        return words.replace("nothing", "remove it") or "remove it"
    return f"use {words}"


def _when(known: ConfigKey) -> str:
    if known.since == OWN:
        return "it is Augury's own"
    return f"it came with {known.since}" if known.until is None else f"it is valid in {known.releases}"


def _renewed(name: str, setting: WrittenKey, args: ReadArguments, release: Version) -> list[Edit]:
    new = replacement(name, setting, args, release)
    if new is None or setting.member is None:
        return setting.drop()
    return setting.rename(new[0]) + setting.set(new[1])


def replacement(name: str, setting: WrittenKey, args: ReadArguments, release: Version) -> tuple[str, Any] | None:
    """The key and value that replace one the release dropped; None if nothing does."""
    tokens = args.keys["num_speculative_tokens"].value if "num_speculative_tokens" in args.keys else None
    if not isinstance(tokens, int) or isinstance(tokens, bool):
        return None
    new: tuple[str, Any] | None = None
    if name == "disable_by_batch_size" and isinstance(setting.value, int) and release >= version(SCHEDULES_SINCE):
        most = setting.value
        new = "num_speculative_tokens_per_batch_size", [[1, most, tokens], [most + 1, most + 1, 0]]
    elif name == "synthetic_acceptance_rate" and isinstance(setting.value, (int, float)):
        new = "synthetic_acceptance_length", round(1 + setting.value * tokens, 6)
    return new if new is not None and new[0] not in args.keys else None


def _value(
    name: str, setting: WrittenKey, window: tuple[str, str | None], args: ReadArguments, release: Version
) -> Problem:
    since, until = window
    says = {"value": setting.value, "since": since, "until": until or ""}
    if since == OWN:
        return _problem("value-augury-only", name, setting, says, setting.drop())
    if release < version(since):
        return _problem("value-too-new", name, setting, says, setting.drop())
    new = OLD_VALUES.get((name, setting.value), {})
    today = " and ".join(f'"{key}": "{value}"' for key, value in new.items())
    says["instead"] = f"write {today}" if today else "remove it"
    edits = setting.set(new[name]) if name in new else setting.drop()
    for key, value in new.items():
        if key != name and value != KEYS[key].default and key not in args.keys:
            edits = edits + args.add_key(key, value)
    return _problem("value-gone", name, setting, says, edits)


def _by_plugin(name: str, setting: WrittenKey, args: ReadArguments, plugged: bool) -> bool:
    """Whether a value is Augury's own, and its plugin is there to understand it."""
    window = KEYS[name].values.get(setting.value) if name in KEYS and isinstance(setting.value, str) else None
    if window is None or window[0] != OWN:
        return False
    scheduler = args.flag("scheduler-cls")
    return plugged or _plugged(args) or str(getattr(scheduler, "value", "")).startswith(CLASSES)


def _plugged(args: ReadArguments) -> bool:
    """Whether the drafter is a class of Augury's plugin, which must then be installed and reads keys of its own."""
    model = args.keys["model"].value if "model" in args.keys else None
    return isinstance(model, str) and model.startswith(CLASSES)


def unused_problems(args: ReadArguments, method: str, left: dict[str, Any]) -> list[Problem]:
    """Keys that the method does not read."""
    found: list[Problem] = []
    if _plugged(args):
        return found
    for name, value in left.items():
        users = readers(name)
        if name not in KEYS or name in ("method", "model") or value == KEYS[name].default or value is None:
            continue
        if users and method not in users:
            says = {"readers": ", ".join(users)}
            found.append(_problem("key-unused", name, args.keys[name], says, args.keys[name].drop()))
    return found


def _problem(kind: str, name: str, setting: WrittenKey, says: dict[str, Any], edits: list[Edit]) -> Problem:
    return Problem(kind, setting.start, setting.end, {"key": name, **says}, edits)
