"""The doctor: every command in a text, checked against a vLLM release and the models' files."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from augury.config.errors import ConfigError
from augury.config.facts import ModelFacts, TargetInfo, read_facts
from augury.config.speculative import SpeculativeConfig
from augury.config.speculators import is_speculator, said_itself, target_of
from augury.config.versions import NEWEST, OLDEST, Version, beyond_newest, version
from augury.config.vllm_class import NO_CLASS, NOT_HERE
from augury.methods.mlp_speculator import MLP_SPECULATOR
from augury.methods.notes import Note
from augury.methods.recognise import USUAL_SPECULATOR, choose, recognise
from augury.methods.registry import ALIASES, METHODS
from augury.tools.doctor.arguments import ReadArguments
from augury.tools.doctor.declared import declared_problems, flag_problems, unused_problems
from augury.tools.doctor.facts import command_facts, model_facts
from augury.tools.doctor.field_facts import FileContext, beside, field_facts
from augury.tools.doctor.findings import Finding, findings
from augury.tools.doctor.found.command import FoundCommand
from augury.tools.doctor.found.find import find_commands
from augury.tools.doctor.kernels import named_problems
from augury.tools.doctor.problems import Problem
from augury.tools.doctor.read_arguments import read_arguments
from augury.tools.doctor.refused import anchor, settle
from augury.tools.doctor.sampling import default_problems, request_problems
from augury.tools.doctor.unchecked import Unchecked, unchecked
from augury.tools.doctor.unwritten import unwritten
from augury.tools.knowledge.conditions import KnownFacts

SERVES_SPECULATORS = "0.10.1"  # first to serve a drafter given as the model, by the target it names
PLUGIN_METHOD = "arctic"
PLUGIN_KEYS = (
    "enable_suffix_decoding",
    "suffix_cache_max_depth",
    "suffix_cache_max_requests",
    "suffix_max_spec_factor",
    "suffix_max_spec_offset",
    "suffix_min_token_prob",
)


class CheckedAgainst(NamedTuple):
    """What commands are checked against."""

    release: str | None = None  # of vLLM; None: what the file names, otherwise the newest known
    target: ModelFacts | None = None
    drafter: ModelFacts | None = None
    plugged: bool = False  # Augury is installed alongside vLLM there, as a running server shows


@dataclass(slots=True)
class Examined:
    """One command and what was found in it."""

    program: str
    start: int
    release: str | None  # it was checked against; None: Augury's own command
    named_by: str  # who named that release: you, file, or nobody
    findings: list[Finding] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)  # by the names of fact_names.py
    keys: Mapping[str, Any] = field(default_factory=dict)  # of speculative_config, as written
    unchecked: tuple[Unchecked, ...] = ()
    target: str | None = None  # as written


@dataclass(slots=True)
class Examination:
    """A text and its commands."""

    name: str
    text: str
    commands: list[Examined]
    starts: list[int] = field(init=False)  # of its lines

    def __post_init__(self) -> None:
        """Record where each line begins, because every finding asks for its line and column."""
        self.starts = [0, *(found.end() for found in re.finditer("\n", self.text))]

    @property
    def findings(self) -> list[Finding]:
        """Findings of all commands, in the order of the text."""
        found = {finding: None for command in self.commands for finding in command.findings}
        rank = {"error": 0, "warning": 1, "note": 2}
        return sorted(found, key=lambda f: (f.start, rank[f.severity], f.id))

    def place(self, offset: int) -> tuple[int, int]:
        """Line and column, both from 1."""
        line = bisect_right(self.starts, offset)
        return line, offset - self.starts[line - 1] + 1


def examine(text: str, name: str = "", asked: CheckedAgainst = CheckedAgainst()) -> Examination:
    """Find and lint every command in a text."""
    commands = [read_arguments(found) for found in find_commands(text, name)]
    others = beside(text, commands)
    return Examination(name, text, [_examine(args, asked, others) for args in commands])


def check_release(text: str, option: str = "--vllm-version") -> str:
    """The release as the user wrote it; a ConfigError if it is malformed or older than the oldest known one."""
    if version(text, option) < version(OLDEST):
        raise ConfigError(f"{option}={text!r}: what is known begins with vLLM {OLDEST}; name that or a later one.")
    return text


def _examine(args: ReadArguments, asked: CheckedAgainst, others: FileContext) -> Examined:
    found = args.found
    release, named_by = _release(found, asked)
    result = Examined(found.program or "speculative_config", found.start, release, named_by)
    number = version(release) if release else None
    problems = list(args.problems)
    if number is not None and beyond_newest(number):
        problems.append(Problem("release-unknown", *anchor(args), {"release": release, "newest": NEWEST}))
    known = KnownFacts({}, {name: setting.value for name, setting in args.keys.items()})
    target = asked.target or _local(args.target)
    draft = asked.drafter or _local(_text(args, "model"))
    own = target if is_speculator(target) else None
    if own is not None and found.program and (number is None or number >= version(SERVES_SPECULATORS)):
        args.speculates = True
    method, config = None, None
    if number is not None:
        problems += flag_problems(args, number)
        problems += named_problems(args, number) if args.speculates else ()
    plugin = number is not None and _of_plugin(args)
    if plugin:
        problems.append(Problem("arctic-plugin", *anchor(args)))
    if args.speculates and args.readable and not plugin and not (args.problems and not args.keys and not args.whole):
        method, config, more = _resolve(args, target, asked, release, number, others.augury or asked.plugged)
        problems += more
    target, draft = (None, draft or own) if own is not None else (target, draft)  # vLLM serves the target it names
    facts = command_facts(args, config, method, number)
    facts |= _facts_beside(args, facts, target, draft, others)
    if args.speculates or (others.speculating and facts["benchmarks_serving"]):
        problems += default_problems(args, target)
    if args.speculates:
        problems += request_problems(args)
    known.facts = result.facts = facts
    result.keys = known.keys
    result.unchecked = unchecked(args, facts, target, draft, target_of(own) if own else args.target)
    result.target = args.target
    result.findings = list(findings(args, known, problems, number))
    return result


def _facts_beside(
    args: ReadArguments, facts: dict[str, Any], target: ModelFacts | None, draft: ModelFacts | None, others: FileContext
) -> dict[str, Any]:
    """Facts that the models' files, the rules from the field and the file's other commands add to a command's own."""
    more = model_facts(facts, target, draft, args.number("max-model-len"))
    more |= field_facts(args, facts | more, target, draft, others)
    model = (facts | more)["model"]
    more["arctic"] = others.arctic
    more["hub_drafter"] = bool(model) and draft is None and not str(model).startswith((".", "/", "~"))
    if args.flag("config") is not None and not args.speculates:
        more["speculates"] = None  # that file may well configure it
    return more


def _release(found: FoundCommand, asked: CheckedAgainst) -> tuple[str | None, str]:
    if found.tool == "augury":
        return None, "nobody"
    if asked.release is not None:
        return asked.release, "you"
    if found.release is not None:
        return (found.release if version(found.release) >= version(OLDEST) else OLDEST), "file"
    return NEWEST, "nobody"


def _text(args: ReadArguments, key: str) -> str | None:
    setting = args.keys.get(key)
    return setting.value if setting is not None and isinstance(setting.value, str) else None


def _local(model: str | None) -> ModelFacts | None:
    try:
        return read_facts(model) if model else None
    except ConfigError:
        return None


def _resolve(
    args: ReadArguments,
    target: ModelFacts | None,
    asked: CheckedAgainst,
    release: str | None,
    number: Version | None,
    plugged: bool,
) -> tuple[str | None, SpeculativeConfig | None, list[Problem]]:
    """The method, the configuration as far as it resolves, and what was wrong with it."""
    left = {name: setting.value for name, setting in args.keys.items()}
    problems: list[Problem] = []
    if release is not None and number is not None:
        problems, left = declared_problems(args, number, release, plugged)
    written, model = left.get("method"), _text(args, "model")
    if not written and model is None and _is_speculator(args.target, target):
        left["model"] = args.target  # the checkpoint names its own target, and how to draft for it
        own = recognise(target.raw) if target else None
        left["method"] = own.method if own else USUAL_SPECULATOR.name
        left = {**(said_itself(target) if target else {}), **left}
    silent = unwritten(left, args.target, target, number) if number is not None and asked.drafter is None else None
    left |= {"method": silent} if silent else {}
    sizes = _ranks(args), args.number("max-model-len")
    config, refused = settle(args, left, TargetInfo(args.target, target, *sizes), release, asked.drafter)
    # Keys that cannot be seen from here may well be set.
    untold = args.partial or silent == ""
    stated = "k-missing" if silent == MLP_SPECULATOR.name else ""  # such checkpoints state the draft length themselves
    told = [found for found in refused if not untold or found.says.get("key") in args.keys]
    problems += [found for found in told if found.name != stated]
    method = _meant(left, config, asked.drafter, target) if config else _by_word(written)
    if config is not None:
        problems += _noted(args, config)
    if method is not None:
        named = {problem.says.get("key") for problem in problems}
        rest = {key: value for key, value in left.items() if key in args.keys and key not in named}
        problems += unused_problems(args, method, rest)
    return method, config, problems


def _of_plugin(args: ReadArguments) -> bool:
    """Whether a configuration is written for the plugin ArcticInference, which brings a method and keys of its own."""
    return _text(args, "method") == PLUGIN_METHOD or any(key in PLUGIN_KEYS for key in args.keys)


def _ranks(args: ReadArguments) -> int | None:
    """The target's tensor parallelism: 1 if a command leaves it out, None if it may be set elsewhere."""
    if args.flag("tensor-parallel-size") is not None:
        return args.number("tensor-parallel-size")
    return 1 if args.found.program and not args.partial and args.flag("config") is None else None


def _meant(
    left: Mapping[str, Any], config: SpeculativeConfig, drafter: ModelFacts | None, target: ModelFacts | None
) -> str:
    """The method that was meant; vLLM's own detection may arrive at another, which `config` then has."""
    if left.get("method"):
        return _by_word(left["method"]) or config.method
    facts = drafter or _local(config.model)
    told = choose("", config.model, facts.raw if facts else {}, TargetInfo(facts=target))
    return told.method if told else config.method


def _is_speculator(name: str | None, facts: ModelFacts | None) -> bool:
    """Whether the model that is served is a drafter in the speculators format, which vLLM swaps for its target."""
    return is_speculator(facts) or "speculator" in (name or "").lower()


def _by_word(written: Any) -> str | None:
    name = ALIASES.get(written, written) if isinstance(written, str) else None
    return name if name in METHODS else None


def _seen_here(note: Note) -> bool:
    """Whether vLLM's class would refuse it on any machine: a path may exist where the command is run, and kernels,
    schedules and runners have entries of their own."""
    told = note.key in ("model", "draft_load_config", "num_speculative_tokens") or "Unsupported" in note.text
    return told and note.kind != "translated" and NOT_HERE not in note.text


def _noted(args: ReadArguments, config: SpeculativeConfig) -> Iterator[Problem]:
    """Those notes of config/ that an operator should treat as problems."""
    for note in config.notes:
        says = {"text": note.text.rstrip(".")}
        name = None
        if note.kind == "vllm" and "padding alone" in note.text:
            name = "vocabulary-padding"
        elif note.kind == "warning" and "it looks like" in note.text:
            name = "another-method"
        elif note.refused and NO_CLASS in note.text:
            name = "drafter-class"
        elif note.refused and _seen_here(note):
            name = "class-refuses"
        elif note.kind == "warning" and "starts all the same" in note.text:
            name = "k-over-block-runs"
        elif note.kind == "warning" and note.key == "num_speculative_tokens_per_batch_size":
            name = "schedule-capped"
        setting = args.keys.get(note.key)
        place = (setting.start, setting.end) if setting else anchor(args)
        if name is not None:
            yield Problem(name, *place, says)
