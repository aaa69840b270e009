"""Suites about the form of an answer: streams, JSON, tool calls, several answers, log-probabilities."""

from __future__ import annotations

import json
import math
from itertools import combinations
from typing import Any

from augury.tools.certify.suite.ask import Peer, Said
from augury.tools.certify.suite.cells import Broken, NotCertified
from augury.tools.certify.suite.pair import SHOWN, Pair

ROUNDED = 0.01  # what servers lose by rounding log-probabilities
HALF = "\N{REPLACEMENT CHARACTER}"
CHANCE = 1e-6  # two equal answers less probable than this are a fault
ANSWERS = 4
NAMES, AGES, TAGS = ["Ada", "Grace", "Edsger"], [36, 85, 72], 2
PERSON = {
    "name": {"type": "string", "enum": NAMES},
    "age": {"type": "integer", "enum": AGES},
    "tags": {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}, "minItems": TAGS, "maxItems": TAGS},
}
SCHEMA = {"type": "object", "properties": PERSON, "required": list(PERSON), "additionalProperties": False}
WANTS_JSON = ("Describe Ada as JSON with name, age and tags.", "Describe Grace as JSON with name, age and tags.")
FORMATS = (  # OpenAI's, then llama.cpp's
    {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}},
    {"type": "json_object", "schema": SCHEMA},
)
CITIES = ("Paris", "Rome", "Oslo")
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "enum": list(CITIES)},
                "days": {"type": "integer", "enum": [1, 3, 7]},
            },
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
FORCED = {"type": "function", "function": {"name": "get_weather"}}


def stream(pair: Pair) -> dict[str, Any]:
    """The pieces of a stream, put together, are the whole answer."""
    tally = pair.tally()
    for prompt in pair.plan.prompts:
        tally.same("whole against streamed", prompt, pair.fast.greedy(prompt), pair.fast.stream(prompt))
        tally.same("chat, whole against streamed", prompt, pair.fast.chat(prompt), pair.fast.chat_stream(prompt))
    return tally.figures()


def json_mode(pair: Pair) -> dict[str, Any]:
    """An answer that must follow a schema does, and equals the plain server's."""
    tally = pair.tally()
    for prompt in WANTS_JSON:
        said, other = _formatted(pair.fast, prompt), _formatted(pair.plain or pair.fast, prompt)
        if said.finish == other.finish == "length":
            raise NotCertified("the JSON did not end in the tokens it had, here or there; raise --max-tokens")
        _person(said, prompt)
        what = "asked again" if pair.plain is None else "plain against speculative"
        tally.same(f"JSON, {what}", prompt, other, said)
    return tally.figures()


def _formatted(peer: Peer, prompt: str) -> Said:
    """The answer with the first response_format that the server takes."""
    for number, form in enumerate(FORMATS):
        try:
            return peer.chat(prompt, response_format=form, max_tokens=max(peer.max_tokens, 64))
        except (NotCertified, Broken):  # llama-cpp-python answers 500 to a type that it does not know
            if number == len(FORMATS) - 1:
                raise
    raise AssertionError("the last form returns or raises")


def _person(said: Said, prompt: str) -> None:
    evidence = {"prompt": prompt, "got": said.text[:SHOWN], "finish": said.finish}
    try:
        found = json.loads(said.text)
    except (ValueError, RecursionError):
        raise Broken("JSON mode gave a text that is no JSON", **evidence) from None
    if not isinstance(found, dict) or set(found) != set(PERSON):
        raise Broken("the JSON does not follow its schema", **evidence)
    name, age, tags = found["name"], found["age"], found["tags"]
    if name not in NAMES or age not in AGES or not isinstance(tags, list) or len(tags) != TAGS:
        raise Broken("the JSON does not follow its schema", **evidence)


def tools(pair: Pair) -> dict[str, Any]:
    """A tool call that the request forces has whole arguments, streamed or not, equal to the plain server's."""
    calls = 0
    for city in CITIES:
        # The question holds the arguments, so that a drafter that copies has something to copy.
        wanted = json.dumps({"city": city, "days": 3}, separators=(",", ":"))
        prompt = f"What will the weather be in {city} for the next 3 days? Call get_weather with {wanted} now."
        asked = {"tools": [TOOL], "tool_choice": FORCED, "max_tokens": max(pair.fast.max_tokens, 64)}
        said = pair.fast.chat(prompt, **asked)
        ways = {"whole": _call(said, prompt), "streamed": _call(pair.fast.chat_stream(prompt, **asked), prompt)}
        if pair.plain is not None:
            ways["plain server"] = _call(pair.plain.chat(prompt, **asked), prompt)
        if any(call != ways["whole"] for call in ways.values()):
            raise Broken(f"tool calls differ between {', '.join(ways)}", prompt=prompt, **ways)
        calls += len(ways)
    return {"answers": calls}


def _call(said: Said, prompt: str) -> Any:
    """The arguments of the one call, checked."""
    calls = (said.choice.get("message") or {}).get("tool_calls") or []
    if not calls:
        raise NotCertified("a forced tool call is answered with text: the server has no parser for them")
    evidence = {"prompt": prompt, "got": calls}
    try:
        called = calls[0]["function"]
        found = json.loads(called["arguments"])
    except (LookupError, TypeError, ValueError, RecursionError):
        raise Broken("the arguments of a tool call are no JSON", **evidence) from None
    if len(calls) != 1 or called["name"] != "get_weather":
        raise Broken("not the one tool call that was asked for", **evidence)
    if not isinstance(found, dict) or set(found) != {"city", "days"}:
        raise Broken("the arguments of a tool call do not follow the schema", **evidence)
    return found


def several(pair: Pair) -> dict[str, Any]:
    """A request for `n` sampled answers gets n of them, which are not copies of each other."""
    tally = 0
    for number, prompt in enumerate(pair.plan.prompts):
        asked = {"n": ANSWERS, "temperature": 1, "seed": 11 + number}
        found = pair.fast.complete(prompt, **asked)
        if len(found) != ANSWERS:
            _too_few(pair, prompt, asked, len(found))
        for i, j in combinations(range(ANSWERS), 2):
            if found[i].text == found[j].text:
                _copies(found[i], i, j, prompt)
        tally += len(found)
    return {"answers": tally, "n": ANSWERS}


def _too_few(pair: Pair, prompt: str, asked: dict[str, Any], came: int) -> None:
    """A server that never gives several does not offer them; one that gives fewer than the plain one is broken."""
    plain = len(pair.plain.complete(prompt, **asked)) if pair.plain is not None else came
    if plain == came == 1:
        raise NotCertified(f"n={ANSWERS} is ignored: one answer comes, with and without speculation")
    raise Broken(f"n={ANSWERS} gave {came} answers, the plain server {plain}", prompt=prompt)


def _copies(said: Said, i: int, j: int, prompt: str) -> None:
    """Two equal answers are a fault if chance does not explain them."""
    likely = said.answer.likely
    if likely is None:
        raise NotCertified("two of the n answers are equal; without log-probabilities chance cannot be ruled out")
    scores = [row[token] for row, token in zip(likely, said.answer.tokens, strict=False) if token in row]
    chance = math.exp(min(0.0, sum(scores)))
    if chance < CHANCE:
        reason = f"answers {i + 1} and {j + 1} of n={ANSWERS} are the same, a chance of {chance:.1g}"
        raise Broken(reason, prompt=prompt, got=said.text[:SHOWN], chance=chance)


def logprobs(pair: Pair) -> dict[str, Any]:
    """Log-probabilities belong to the tokens: greedy takes the likeliest, they add up, and the plain server agrees."""
    if not pair.fast.scores:
        raise NotCertified("the server gives no log-probabilities with completions")
    tokens, furthest = 0, 0.0
    for prompt in pair.plan.prompts:
        said = pair.fast.greedy(prompt)
        tokens += _scored(said, prompt, pair.plan.tolerance)
        if pair.plain is not None and pair.plain.scores:
            furthest = max(furthest, _agree(said, pair.plain.greedy(prompt), prompt, pair.plan.tolerance))
    return {"answers": len(pair.plan.prompts), "tokens": tokens, "furthest": round(furthest, 4)}


def _scored(said: Said, prompt: str, tolerance: float) -> int:
    """Check one answer's log-probabilities by themselves."""
    told = said.choice.get("logprobs") or {}
    own, tops, names = (told.get(name) or [] for name in ("token_logprobs", "top_logprobs", "tokens"))
    if not names or not len(own) == len(tops) == len(names):
        counts = f"{len(names)} tokens, {len(own)} log-probabilities, {len(tops)} lists of likely ones"
        raise Broken(f"log-probabilities are incomplete: {counts}", prompt=prompt, got=said.text[:SHOWN])
    for place, (name, score, row) in enumerate(zip(names, own, tops, strict=True)):
        evidence = {"prompt": prompt, "position": place, "token": name, "logprob": score, "top": row}
        if score is None or math.isnan(score) or score > ROUNDED:
            raise Broken("a log-probability is missing or above 0", **evidence)
        best = max(row.values(), default=score)
        if best - score > tolerance:
            raise Broken("a greedy token is not the likeliest by its own log-probabilities", **evidence)
        # Parts of characters all look alike, and a table by text keeps only one of them.
        if name in row and HALF not in name and abs(row[name] - score) > ROUNDED:
            raise Broken("a token has two log-probabilities", **evidence)
        if sum(math.exp(value) for value in row.values()) > 1 + ROUNDED:
            raise Broken("the likeliest tokens have more than all the probability", **evidence)
    return len(names)


def _agree(said: Said, plain: Said, prompt: str, tolerance: float) -> float:
    """How far apart the two servers' log-probabilities of the same tokens are, up to where the answers differ."""
    furthest = 0.0
    ours, theirs = said.choice["logprobs"], plain.choice.get("logprobs") or {}
    given = zip(theirs.get("tokens") or (), theirs.get("token_logprobs") or (), strict=False)
    for place, ((name, score), (other, others)) in enumerate(
        zip(zip(ours["tokens"], ours["token_logprobs"], strict=False), given, strict=False)
    ):
        if name != other:
            break
        apart = abs(score - others) if others is not None else 0.0
        if apart > tolerance:
            reason = f"log-probabilities of one token are {apart:.2f} nats apart between the servers"
            raise Broken(reason, prompt=prompt, position=place, token=name, plain=others, speculative=score)
        furthest = max(furthest, apart)
    return furthest
