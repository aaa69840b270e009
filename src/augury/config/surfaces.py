"""Where a speculative_config may be written: JSON, dotted flags, shortcuts, a YAML file, the environment."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from augury.config.errors import ConfigError
from augury.methods.hybrid import as_one

ENVIRONMENT = "AUGURY_SPECULATIVE_CONFIG"
FLAG = "--speculative-config"
SHORTCUTS = {"spec_method": "method", "spec_model": "model", "spec_tokens": "num_speculative_tokens"}
EXAMPLE = '\'{"method": "ngram", "num_speculative_tokens": 4}\''
SWITCHED_OFF_BY = {"chat": "--raw"}  # switches that are on unless told otherwise
UNITS = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}  # as vLLM reads them


def from_json(text: str, where: str = FLAG) -> dict[str, Any]:
    """One speculative_config: an object, or a list of drafters that work together."""
    return _object(as_one(_parsed(text, where)), where)


def object_from_json(text: str, where: str, example: str = EXAMPLE) -> dict[str, Any]:
    """One JSON object, or a line that says what is wrong with it."""
    return _object(_parsed(text, where, example), where, example)


def _object(given: Any, where: str, example: str = EXAMPLE) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise ConfigError(f"{where} must be a JSON object such as {example}, got {type(given).__name__}.")
    return given


def _parsed(text: str, where: str, example: str = EXAMPLE) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_once)
    except ConfigError:
        raise
    except json.JSONDecodeError as error:
        eaten = text.lstrip().startswith("{") and "'" not in text and '"' not in text
        hint = " (the shell may have eaten the quotes: put the whole object in single quotes)" if eaten else ""
        raise ConfigError(
            f"{where} is not JSON ({error.msg} at character {error.pos}){hint}; write for example {example}."
        ) from None
    except (RecursionError, ValueError):
        raise ConfigError(f"{where} is nested too deeply, or holds a number with thousands of digits.") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make a JSON object and refuse duplicate keys, one of which would be silently dropped."""
    keys = dict(pairs)
    if len(keys) < len(pairs):
        twice = next(name for i, (name, _) in enumerate(pairs) if name in dict(pairs[:i]))
        raise ConfigError(f"speculative_config.{twice} is given twice; keep one.")
    return keys


def gather(
    text: str | None, shortcuts: Mapping[str, Any] | None = None, environment: Mapping[str, str] | None = None
) -> dict[str, Any] | None:
    """One dictionary from the flag and its shortcuts, or else from the environment; the same key twice is an error."""
    given = dict(from_json(text)) if text is not None else {}
    for name, value in (shortcuts or {}).items():
        if value is None:
            continue
        key = SHORTCUTS[name]
        if any(other.replace("-", "_") == key for other in given):
            flag = "--" + name.replace("_", "-")
            raise ConfigError(f"{flag} and {key!r} in {FLAG} say the same thing twice; keep one.")
        given[key] = value
    if not given and text is None:
        stored = (environment or {}).get(ENVIRONMENT)
        return from_json(stored, ENVIRONMENT) if stored else None
    return given


def fold_dotted(arguments: Sequence[str]) -> list[str]:
    """Turn `-sc.key value` flags into one JSON flag, merged with the one that is there already.

    Without such flags every JSON flag stays where it is: some commands take several.
    """
    rest: list[str] = []
    dotted: dict[str, Any] = {}
    wholes: list[tuple[int, str]] = []
    place = 0
    words = iter(arguments)
    for word in words:
        flag, sign, value = word.partition("=")
        name = re.sub(r"^(-sc|--speculative[-_]config)(?=$|\.)", FLAG, flag)
        if word == "--":
            rest += [word, *words]
        elif name == FLAG:
            wholes.append((len(rest), value if sign else _following(words, word)))
        elif name.startswith(FLAG + "."):
            _put(dotted, name.removeprefix(FLAG + "."), value if sign else _following(words, word))
            place = place or len(rest)
        else:
            rest.append(word)
    if dotted and len(wholes) > 1:
        raise ConfigError(f"-sc.key adds to one {FLAG}, and there are {len(wholes)}; write all keys as JSON.")
    if dotted:
        whole = from_json(wholes[0][1]) if wholes else {}
        wholes = [(wholes[0][0] if wholes else place, json.dumps(_merged(whole, dotted)))]
    for at, text in reversed(wholes):
        rest[at:at] = [FLAG, text]
    return rest


def _following(words: Any, flag: str) -> str:
    value = next(words, None)
    if value is None:
        raise ConfigError(f"{flag} needs a value after it.")
    return str(value)


def _put(into: dict[str, Any], path: str, text: str) -> None:
    """`a.b value` sets a nested key, `a+ x,y` adds to a list."""
    *parents, last = (part.replace("-", "_") for part in path.split("."))
    for part in parents:
        inner = into.setdefault(part, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"-sc.{path}: {part!r} already has the value {inner!r}; a key cannot be both.")
        into = inner
    if last.endswith("+"):
        added = [_value(item) for item in text.split(",")]
        before = into.setdefault(last[:-1], [])
        if not isinstance(before, list):
            raise ConfigError(f"-sc.{path} adds to a list, but {last[:-1]!r} is {before!r}.")
        before += added
    elif last in into:
        raise ConfigError(f"-sc.{path} is given twice; keep one.")
    else:
        into[last] = _value(text)


def _value(text: str) -> Any:
    """JSON where it is JSON, a number with a unit where it is that, otherwise the text itself."""
    unit = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgKMG])", text)
    if unit:
        return int(float(unit[1]) * UNITS[unit[2]])
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _merged(whole: dict[str, Any], dotted: dict[str, Any]) -> dict[str, Any]:
    result = {name.replace("-", "_"): value for name, value in whole.items()}
    for name, value in dotted.items():
        if isinstance(value, dict) and isinstance(result.get(name), dict):
            result[name] = _merged(result[name], value)
        elif name in result:
            raise ConfigError(f"-sc.{name} and {name!r} in {FLAG} say the same thing twice; keep one.")
        else:
            result[name] = value
    return result


def read_yaml(file: Path) -> dict[str, Any]:
    """A YAML file of arguments, as a mapping."""
    import yaml

    try:
        found = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config {file}: {getattr(error, 'strerror', None) or 'not a text file'}.") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"--config {file} is not YAML: {' '.join(str(error).split())}.") from None
    except RecursionError:
        raise ConfigError(f"--config {file} is nested too deeply.") from None
    if not isinstance(found, dict):
        raise ConfigError(f"--config {file} must hold a mapping of arguments, such as `speculative-config:`.")
    return {str(name).replace("_", "-"): value for name, value in found.items()}


def unfold_yaml(arguments: Sequence[str]) -> list[str]:
    """Put what `--config FILE` says right after the command's name, so that the flags after it win."""
    rest, files = [], []
    words = iter(arguments)
    for word in words:
        if word == "--":
            rest += [word, *words]
        elif word == "--config" or word.startswith("--config="):
            files.append(Path(word.partition("=")[2] or _following(words, word)))
        else:
            rest.append(word)
    given = {word.partition("=")[0] for word in rest}
    flags: list[str] = []
    for file in files:
        for name, value in read_yaml(file).items():
            if f"--{name}" not in given:  # a list flag would add to the file's instead of replacing it
                flags += _as_flags(name, value, file)
    named = 2 if rest[:1] == ["serve"] and rest[1:2] and not rest[1].startswith("-") else 1  # the model stays first
    return [*rest[:named], *flags, *rest[named:]]


def _as_flags(name: str, value: Any, file: Path) -> list[str]:
    if value is None or (value is False and name not in SWITCHED_OFF_BY):
        return []  # every other switch is off unless it is named
    if isinstance(value, bool):
        return [f"--{name}" if value else SWITCHED_OFF_BY[name]]
    if isinstance(value, list):
        return [part for item in value for part in (f"--{name}", str(item))]
    if not isinstance(value, dict):
        return [f"--{name}", str(value)]
    try:
        return [f"--{name}", json.dumps(value, default=str)]
    except (ValueError, TypeError, RecursionError):
        raise ConfigError(f"--config {file}: {name} cannot be written as JSON (does it refer to itself?).") from None
