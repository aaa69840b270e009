"""Attacks on a server, each a function of its own: what once stalled it, killed it or told on a neighbour."""

from __future__ import annotations

import json
import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import Any, NamedTuple

import httpx

PATIENCE = 120.0  # seconds an attacker waits for an answer
JSON = "application/json"
SECRETS = 12  # that the thief is after
client = httpx.Client(verify=False, limits=httpx.Limits(max_connections=None))  # noqa: S501 (loopback, without TLS)


class Target(NamedTuple):
    """The server under siege, seen from outside."""

    port: int
    keys: tuple[str, str]  # the attacker has the first, somebody else the second

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"


class Seen(NamedTuple):
    """What an attack met: statuses by count, and whatever shows that it got through."""

    statuses: Counter[str]
    fell: str = ""  # empty: it held


class Attack(NamedTuple):
    """An attack, and the item of the list of faults it belongs to."""

    name: str
    item: int
    run: Callable[[Target], Seen]


def post(target: Target, body: Any, path: str = "/v1/completions", key: int = 0, raw: bytes | None = None) -> str:
    """Send one request with a key; its status, or how the connection ended."""
    headers = {"authorization": f"Bearer {target.keys[key]}", "content-type": JSON}
    data = raw if raw is not None else json.dumps(body).encode()
    try:
        answer = client.post(f"{target.url}{path}", content=data, headers=headers, timeout=PATIENCE)
    except httpx.HTTPError as error:
        return type(error).__name__
    late = answer.status_code == 503 and "retry-after" not in answer.headers
    return f"{answer.status_code}{' without Retry-After' if late else ''}"


def together(target: Target, bodies: Sequence[Any], path: str = "/v1/completions") -> Seen:
    """Send these at once; a 5xx other than a 503 that says when to come back means that it got through."""
    with ThreadPoolExecutor(max(1, len(bodies))) as pool:
        seen = Counter(pool.map(lambda body: post(target, body, path), bodies))
    return judged(seen)


def judged(seen: Counter[str]) -> Seen:
    """Statuses are enough to say that it fell where one of them is an error of the server's."""
    bad = sorted(status for status in seen if status[:1] == "5" and status != "503")
    return Seen(seen, f"answered {', '.join(bad)}" if bad else "")


def asking(**more: Any) -> dict[str, Any]:
    """A small request, and what makes it a large one."""
    return {"prompt": "x", "max_tokens": 2, **more}


# --- 1, 2, 5: numbers and grammars ------------------------------------------------------------------------------------


def huge_max_tokens(target: Target) -> Seen:
    """309 nines."""
    raw = b'{"prompt": "x", "max_tokens": ' + b"9" * 309 + b"}"
    return judged(Counter(post(target, None, raw=raw) for _ in range(3)))


def chained_refs(target: Target) -> Seen:
    """A thousand definitions, each of them the next one."""
    definitions = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(1000)} | {"d1000": {"type": "string"}}
    return together(target, [asking(structured_outputs={"json": {"$defs": definitions, "$ref": "#/$defs/d0"}})] * 2)


def many_rules(target: Target) -> Seen:
    """Four thousand rules, in GBNF and in Lark's form."""
    gbnf = "root ::= r0\n" + "".join(f"r{i} ::= r{i + 1}\n" for i in range(4000)) + 'r4000 ::= "a"\n'
    lark = "start: r0\n" + "".join(f"r{i}: r{i + 1}\n" for i in range(3000)) + 'r3000: "a"\n'
    return together(target, [asking(structured_outputs={"grammar": text}) for text in (gbnf, lark)])


def deep_schema(target: Target) -> Seen:
    """Arrays of arrays of arrays."""
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(400):
        schema = {"type": "array", "items": schema}
    return together(target, [asking(structured_outputs={"json": schema})] * 2)


def heavy_grammars(target: Target) -> Seen:
    """Two grammars of half a megabyte: structured output must stay there for others."""
    enums = [{f"k{i}": {"enum": [f"v{i}{j}" for j in range(60)]}} for i in range(900)]
    closed = {"type": "object", "additionalProperties": False}
    schema = {"anyOf": [{**closed, "properties": part, "required": list(part)} for part in enums]}
    heavy = [asking(structured_outputs={"json": {**schema, "title": str(i)}}) for i in range(2)]
    innocent = asking(structured_outputs={"choice": ["a", "b"]})
    with ThreadPoolExecutor(3) as pool:
        began = [pool.submit(post, target, body) for body in heavy]
        time.sleep(0.5)
        met = Counter(post(target, innocent, key=1) for _ in range(5))
        seen = Counter(one.result() for one in began)
    fell = "" if set(met) <= {"200", "503"} else f"innocents got {dict(met)}"
    return Seen(seen + Counter({f"innocent {status}": n for status, n in met.items()}), fell or judged(seen).fell)


# --- 3: what one client may learn of another --------------------------------------------------------------------------


def thief(target: Target) -> Seen:
    """With the first key, read what the second was answered: drafts in the trace, prompts in `cached_tokens`.

    The owner plays it as well: where even the owner read nothing, the thief's failure would prove nothing.
    """
    with ThreadPoolExecutor(SECRETS) as pool:
        taken = [list(pool.map(lambda number: _read(target, number, key), range(SECRETS))) for key in (0, 1)]  # noqa: B023
    (stolen, told), (own, known) = (map(sum, zip(*taken[key], strict=True)) for key in (0, 1))
    fell = [f"{stolen} drafts of another key's answers"] * (stolen > 0) + ["cached_tokens"] * (told > 0)
    fell += ["the owner reads nothing either"] * (not own or not known)
    return Seen(Counter({"secrets": SECRETS, "drafts the owner reads": own}), ", ".join(fell))


def _read(target: Target, number: int, key: int) -> tuple[int, int]:
    """How many drafts of a secret answer the trace shows to a key, and how many of its prompt's tokens were cached."""
    secret = {
        "prompt": f"secret {number}{key} that fills more than one block of the cache, by far",
        "max_tokens": 60,
        "seed": number,
        "temperature": 1,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    said = _answer(target, secret, key=1)["choices"][0]["token_ids"]
    stolen = 0
    for at in range(4, 40, 6):
        forced = {"prompt": said[at - 4 : at], "allowed_token_ids": [said[at]], "max_tokens": 4, "ignore_eos": True}
        answer = _answer(target, {**forced, "speculative": {"trace": True}}, key)
        drafts = [step["draft"]["ids"] for step in answer.get("augury", {}).get("steps", []) if "draft" in step]
        stolen += any(_common(ids, said[at + 1 :]) >= 2 for ids in drafts)
    details = _answer(target, secret, key)["usage"].get("prompt_tokens_details") or {}
    return stolen, details.get("cached_tokens") or 0


def _answer(target: Target, body: Any, key: int) -> Any:
    headers = {"authorization": f"Bearer {target.keys[key]}"}
    return client.post(f"{target.url}/v1/completions", json=body, headers=headers, timeout=PATIENCE).json()


def _common(ids: list[int], said: list[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(ids, said, strict=False)) if a != b), min(len(ids), len(said)))


# --- 4: small requests that take long ---------------------------------------------------------------------------------


def bad_words_by_the_thousand(target: Target) -> Seen:
    """128 words of 128 letters, eight prompts, 128 answers each."""
    words = [chr(97 + i % 26) * 127 + chr(97 + i // 26) for i in range(128)]
    return together(target, [asking(prompt=["x"] * 8, n=128, bad_words=words)])


def wide_logit_bias(target: Target) -> Seen:
    """An entry for every token, for 64 answers."""
    return together(target, [asking(n=64, logit_bias={str(i): 0.5 for i in range(250)})] * 4)


def repeated_allowed_tokens(target: Target) -> Seen:
    """The same token a million times."""
    return together(target, [asking(allowed_token_ids=[65] * 1_000_000)])


def leaving_newest_first(target: Target) -> Seen:
    """Connections with a thousand answers each, which leave in the worst order."""
    asked = {"prompt": ["x"] * 8, "n": 128, "max_tokens": 200, "stream": True, "ignore_eos": True}
    body = json.dumps(asked).encode()
    seen: Counter[str] = Counter()
    with ExitStack() as stack:
        lines = [stack.enter_context(_open(target, body)) for _ in range(16)]
        for line in reversed(lines):
            line.settimeout(5)
            with suppress(OSError):
                seen[line.recv(20).split(b" ")[1].decode()] += 1
            line.close()
    return judged(seen)


def mixed_prompts(target: Target) -> Seen:
    """A list of a hundred thousand prompts that are of every type but one."""
    return together(target, [asking(prompt=["x", 3, None, {"a": 1}, [[]]] * 80_000)])


def unknown_fields(target: Target) -> Seen:
    """Twenty thousand fields that nobody knows."""
    return together(target, [asking(**{f"unknown_{i}": i for i in range(20_000)})])


def many_logprobs(target: Target) -> Seen:
    """Log-probabilities of a whole prompt, for 128 answers."""
    return together(target, [asking(prompt="abc " * 100, prompt_logprobs=20, logprobs=20, n=128)])


def large_tokenize(target: Target) -> Seen:
    """Six texts of four megabytes."""
    return together(target, [{"prompt": f"{i} " + "word " * 800_000} for i in range(6)], "/tokenize")


# --- 6, 7: who never reads, and who never ends ------------------------------------------------------------------------


def readers_who_never_read(target: Target) -> Seen:
    """Streams whose clients take nothing."""
    body = json.dumps({"prompt": "x", "n": 32, "max_tokens": 400, "stream": True, "ignore_eos": True}).encode()
    with ExitStack() as stack:
        for _ in range(32):
            stack.enter_context(_open(target, body, buffer=2048))
        time.sleep(8)
    return Seen(Counter({"left unread": 32}))


def unfinished_posts(target: Target) -> Seen:
    """Forty bodies of megabytes, without a key, that never come to their end."""
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += b"Content-Length: 16000000\r\n\r\n"
    seen: Counter[str] = Counter()
    with ExitStack() as stack:
        for _ in range(40):
            line = stack.enter_context(socket.create_connection(("127.0.0.1", target.port), timeout=2))
            with suppress(OSError):
                line.sendall(head)
                for _ in range(12):
                    line.sendall(b"x" * (1 << 20))
            line.settimeout(0.2)
            try:
                seen[line.recv(20).split(b" ")[1].decode()] += 1
            except (OSError, IndexError):
                seen["no answer yet"] += 1
    return Seen(seen)


def _open(target: Target, body: bytes, buffer: int = 0) -> socket.socket:
    line = socket.socket()
    if buffer:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    line.settimeout(10)
    line.connect(("127.0.0.1", target.port))
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {target.keys[0]}\r\n"
    head += f"Content-Type: {JSON}\r\nContent-Length: {len(body)}\r\n\r\n"
    with suppress(OSError):
        line.sendall(head.encode() + body)
    return line


# --- 9: HTTP itself ---------------------------------------------------------------------------------------------------


def exchange(target: Target, sent: bytes, seconds: float = 5.0) -> bytes:
    """Send bytes and read until the server hangs up, or for so long."""
    got = b""
    with socket.create_connection(("127.0.0.1", target.port), timeout=seconds) as line, suppress(OSError):
        line.sendall(sent)
        while len(got) < 1 << 20 and (more := line.recv(1 << 16)):
            got += more
    return got


def smuggling(target: Target) -> Seen:
    """Length and chunks together, an HTTP/2 preface, bare line feeds, five thousand headers: refused, once."""
    body = json.dumps(asking()).encode()
    start = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {target.keys[0]}\r\n".encode()
    start += b"Content-Type: application/json\r\n"
    both = start + b"Content-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (
        len(body),
        len(body),
        body,
    )
    many = b"".join(b"X%d: y\r\n" % i for i in range(5000))
    tried = {
        "length and chunks": both,
        "preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00" * 9,
        "bare line feeds": b"GET /health HTTP/1.1\nHost: localhost\n\n",
        "headers": b"GET /health HTTP/1.1\r\nHost: localhost\r\n%b\r\n" % many,
    }
    seen: Counter[str] = Counter()
    wrong = []
    for name, sent in tried.items():
        got = exchange(target, sent)
        status = got.split(b" ", 2)[1].decode() if got.count(b" ") > 1 else "closed"
        seen[f"{name}: {status}"] += 1
        if status == "200" or got.count(b"HTTP/1.1 ") > 1:
            wrong.append(name)
    return Seen(seen, ", ".join(wrong))


def forged_hosts(target: Target) -> Seen:
    """A page under another name must read nothing, and no redirect may carry that name."""
    seen: Counter[str] = Counter()
    wrong = []
    for path in ("/augury/live", "/metrics", "/v1/models/", "/health/"):
        answer = client.get(f"{target.url}{path}", headers={"host": "evil.example"}, timeout=10)
        seen[f"{path} {answer.status_code}"] += 1
        if answer.status_code == 200 or "evil.example" in answer.headers.get("location", ""):
            wrong.append(path)
    return Seen(seen, ", ".join(wrong))


def echoes(target: Target) -> Seen:
    """An error must not send megabytes back."""
    headers = {"authorization": f"Bearer {target.keys[0]}"}
    seen: Counter[str] = Counter()
    largest = 0
    for body in (asking(temperature="y" * 3_000_000), {"z" * 3_000_000: 1}, asking(model="m" * 3_000_000)):
        answer = client.post(f"{target.url}/v1/completions", json=body, headers=headers, timeout=PATIENCE)
        seen[str(answer.status_code)] += 1
        largest = max(largest, len(answer.content))
    return Seen(seen, f"an error of {largest:,} bytes" if largest > 20_000 else judged(seen).fell)


def blank_bad_word(target: Target) -> Seen:
    """A word that is nothing but a blank."""
    return together(target, [asking(bad_words=[" "]), asking(bad_words=["\n"])])


ATTACKS: tuple[Attack, ...] = (
    Attack("huge max_tokens", 1, huge_max_tokens),
    Attack("chain of $refs", 2, chained_refs),
    Attack("thousands of rules", 2, many_rules),
    Attack("deep schema", 2, deep_schema),
    Attack("thief", 3, thief),
    Attack("bad_words", 4, bad_words_by_the_thousand),
    Attack("logit_bias", 4, wide_logit_bias),
    Attack("allowed_token_ids", 4, repeated_allowed_tokens),
    Attack("leaving newest first", 4, leaving_newest_first),
    Attack("mixed prompts", 4, mixed_prompts),
    Attack("unknown fields", 4, unknown_fields),
    Attack("prompt_logprobs", 4, many_logprobs),
    Attack("tokenize", 4, large_tokenize),
    Attack("heavy grammars", 5, heavy_grammars),
    Attack("readers who never read", 6, readers_who_never_read),
    Attack("unfinished POSTs", 7, unfinished_posts),
    Attack("blank bad_words", 9, blank_bad_word),
    Attack("smuggling", 9, smuggling),
    Attack("forged hosts", 9, forged_hosts),
    Attack("echoes", 9, echoes),
)
