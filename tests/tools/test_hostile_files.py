"""Files that somebody else has written: each costs one clear error, bounded time and bounded memory."""

from __future__ import annotations

import gzip
import json
import os
import resource
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from augury.cli import app
from augury.config.errors import ConfigError
from augury.index.store import MAGIC, SuffixFileError, load, save
from augury.index.suffix import SuffixCache
from augury.model.errors import ModelError
from augury.tools.doctor.examine import Asked, Examination, examine
from augury.tools.doctor.fix import MOST_WORK, mended
from augury.tools.doctor.found import allowance as allowances
from augury.tools.doctor.found.allowance import MOST, MOST_COMMANDS
from augury.tools.doctor.found.find import find_commands
from augury.tools.replay import traces
from augury.tools.replay.traces import TraceError, TraceReader
from augury.tools.shared.safe_text import safe_text, shown

SPEC = """vllm serve m -sc '{"method": "ngram", "num_speculative_tokens": 4, "disable_by_batch_size": 16}'\n"""
STEERING = [chr(code) for code in (*range(32), *range(127, 160))]
EVIL = "evil\x1b]0;title\x07\x1b[31m\x9b2J\u009d"


def run(*words: str, stdin: bytes | None = None) -> tuple[int, str]:
    """A command in this process: exit code and all it says."""
    done = CliRunner().invoke(app, list(words), input=stdin)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


def bounded(*words: str, seconds: int = 60, megabytes: int = 2500) -> subprocess.CompletedProcess[bytes]:
    """A command in a child that may take so much processor time and memory; a larger need ends it by signal."""

    def limits() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20, megabytes << 20))

    command = [sys.executable, "-c", "from augury.cli import main; main()", *words]
    env = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, preexec_fn=limits, timeout=600, env=env)


def one_error(done: subprocess.CompletedProcess[bytes], *words: str) -> None:
    said = done.stderr.decode()
    assert done.returncode == 2 and said.startswith("error: ") and said.count("\n") == 1, (done.returncode, said[-500:])
    assert all(word in said for word in words), said


# - the doctor: what a text may make of itself -----------------------------------------------------------------------


def doubling(count: int, line: str) -> str:
    return "A1=xxxxxxxxxx\n" + "".join(line.format(i, i + 1) for i in range(1, count)) + f"vllm serve $A{count}\n"


BOMBS: dict[str, tuple[str, str]] = {
    "variables": ("x.sh", doubling(60, "A{1}=$A{0}$A{0}\n")),
    "quoted variables": ("x.sh", doubling(60, 'A{1}="${{A{0}}}${{A{0}}}"\n')),
    "a shell in each line": ("x.sh", f"bash -c '{doubling(30, 'A{1}=$A{0}$A{0};').replace(chr(10), ';')}'\n" * 40),
    "arrays": ("x.sh", "A=(" + "x " * 5000 + ")\n" + 'vllm "${A[@]}"\n' * 5000),
    "many variables": ("x.sh", "".join(f"V{i}=x\n" for i in range(20_000)) + SPEC),
    "aliases": (
        "x.yaml",
        "a0: &a0 [x,x]\n" + "".join(f"a{i + 1}: &a{i + 1} [*a{i},*a{i}]\n" for i in range(50))
        + "speculative_config: {a: *a50}\n",
    ),
    "names": (
        "x.py",
        "from vllm import LLM\na0={'a':1}\n" + "".join(f"a{i + 1}={{'a':a{i},'b':a{i}}}\n" for i in range(50))
        + "LLM('m', speculative_config=a50)\n",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("name", "text"), BOMBS.values(), ids=BOMBS)
def test_what_grows_is_bounded(name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Letters added are counted, and the reading ends in one error at the limit."""
    spent: list[int] = []
    left = allowances._left

    def take(value: int) -> Any:
        if (before := left.get()) is not None:
            spent.append(before - value)
        return left.set(value)

    monkeypatch.setattr(allowances, "_left", SimpleNamespace(get=left.get, set=take, reset=left.reset))
    with pytest.raises(ConfigError, match="variables of this text add more than 2,000,000 letters"):
        find_commands(text, name)
    assert sum(spent[:-1]) <= MOST and len(spent) <= MOST


def test_ordinary_variables_are_filled_in() -> None:
    """The limit is far from what people write: a hundred variables, used by two hundred commands."""
    text = "".join(f"V{i}={'x' * 20}\n" for i in range(100)) + "".join(f"vllm serve $V{i % 100}\n" for i in range(200))
    found = find_commands(text, "x.sh")
    assert [one.words[0].text for one in found] == ["x" * 20] * 200 and len(found[0].environment) == 100


def test_an_environment_is_that_of_its_place() -> None:
    """Commands share the variables around them as long as none is set between them."""
    text = "export A=1\nvllm serve m\nvllm serve m\nexport A=2 B=3\nvllm serve m\nC=4 vllm serve m\nvllm serve m\n"
    values = [{name: one.value for name, one in found.environment.items()} for found in find_commands(text, "x.sh")]
    late = {"A": "2", "B": "3"}
    assert values == [{"A": "1"}, {"A": "1"}, late, {**late, "C": "4"}, late]


def test_twenty_thousand_commands() -> None:
    with pytest.raises(ConfigError, match=r"x.sh holds 20,000 commands; 2,000 are examined at once, split it"):
        find_commands(SPEC * 20_000, "x.sh")
    assert len(find_commands(SPEC * MOST_COMMANDS, "x.sh")) == MOST_COMMANDS


def test_the_work_of_a_file_grows_with_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice the commands are twice the calls, placing each finding included."""

    def calls(count: int) -> int:
        made = 0

        def note(frame: Any, event: str, argument: Any) -> None:
            nonlocal made
            made += event in ("call", "c_call")

        sys.setprofile(note)
        try:
            result = examine("A=b\n" + SPEC * count, "x.sh")
            places = [result.place(finding.start) for finding in result.findings]
        finally:
            sys.setprofile(None)
        assert places == sorted(places) and {line for line, _ in places} == set(range(2, count + 2))
        return made

    calls(5)  # knowledge is read once
    few, many = calls(20), calls(80)
    assert many < 4.4 * few


def test_mending_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts are counted in commands examined, so that a large file gets fewer of them."""
    examined: list[int] = []

    def counted(text: str, name: str, asked: Any) -> Examination:
        examined.append(text.count("vllm serve"))
        return examine(text, name, asked)

    monkeypatch.setattr("augury.tools.doctor.fix.examine", counted)
    monkeypatch.setattr("augury.tools.doctor.fix.MOST_WORK", 300)
    before = examine(SPEC * 60, "x.sh")
    after = mended(before, Asked())
    assert sum(examined) <= 300 + 2 * 60 and MOST_WORK > 300
    assert len(after.findings) < len(before.findings) and after.text != before.text


@pytest.mark.parametrize(
    ("line", "column", "offset"), [(1, 1, 0), (1, 4, 3), (2, 1, 4), (3, 1, 5), (3, 3, 7)]
)  # fmt: skip
def test_places(line: int, column: int, offset: int) -> None:
    assert Examination("", "abc\n\nde", []).place(offset) == (line, column)


WIDE = 200_000
LONG_LINES: dict[str, tuple[str, str]] = {
    "dashes": ("x", "vllm " + "-" * WIDE),
    "unclosed defaults": ("x.sh", "vllm serve m\n" + "${a-" * (WIDE // 4)),
    "shells": ("x.sh", "vllm serve m\n" + "sh " * (WIDE // 3)),
    "an image": ("Dockerfile", f"FROM {'vllm' * (WIDE // 4)}\nCMD x\n"),
    "appended arrays": ("x.sh", "vllm serve m\n" + "A+=(x)\n" * (WIDE // 7)),
    "flags": ("x.sh", "vllm serve m " + " ".join(f"--f{i}" for i in range(WIDE // 8))),
    "yaml": ("x.yaml", "command: vllm serve m\nother:\n" + "- a: b\n" * (WIDE // 7)),
    "keywords": ("x.py", "from vllm import LLM\nLLM('é'," + ",".join(f"k{i}='é'" for i in range(WIDE // 10)) + ")\n"),
}


@pytest.mark.slow
def test_long_lines_take_bounded_time_and_memory(tmp_path: Path) -> None:
    """Each once took time by the square of its length; together they have two minutes of processor time."""
    files = [tmp_path / f"{i}" / name for i, (name, _) in enumerate(LONG_LINES.values())]
    for file, (_, text) in zip(files, LONG_LINES.values(), strict=True):
        file.parent.mkdir()
        file.write_text(text)
    code = "import sys\nfrom augury.cli import app\nfrom typer.testing import CliRunner\nfor name in sys.argv[1:]:\n"
    code += "    done = CliRunner().invoke(app, ['doctor', name])\n    print(done.exit_code, repr(done.exception))\n"

    def limits() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (120, 120))
        resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))

    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, files)], capture_output=True, text=True, preexec_fn=limits, timeout=600
    )
    assert done.returncode == 0, done.stderr[-500:]
    lines = done.stdout.splitlines()
    assert len(lines) == len(files) and all("SystemExit" in line or "None" in line for line in lines), lines


# - what is no file ----------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no endless device here")
def test_a_link_to_an_endless_device(tmp_path: Path) -> None:
    link, folder = tmp_path / "deploy.sh", tmp_path / "deploy"
    link.symlink_to("/dev/zero")
    one_error(bounded("doctor", str(link)), "more than 2,000,000 bytes")
    folder.mkdir()
    (folder / "run.sh").symlink_to("/dev/zero")
    os.mkfifo(folder / "pipe.sh")  # nobody writes to it
    (folder / "good.sh").write_text(SPEC)
    done = bounded("doctor", str(folder))
    assert done.returncode == 1 and b"good.sh:1:" in done.stdout
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").symlink_to("/dev/zero")
    one_error(bounded("doctor", SPEC, "--target", str(model)), "config.json", "bytes")
    one_error(bounded("suffix", "show", str(link)), "not a suffix cache")


def test_standard_input_is_bounded() -> None:
    code, said = run("doctor", "-", stdin=b"vllm serve m\n" + b"#" * 2_000_000)
    assert code == 2 and "standard input has more than 2,000,000 bytes" in said


# - names that steer a terminal ----------------------------------------------------------------------------------------


def steers(text: str) -> list[str]:
    return sorted({sign for sign in text if sign in STEERING and sign != "\n"})


@pytest.fixture
def evil(tmp_path: Path) -> Path:
    folder = tmp_path / EVIL
    folder.mkdir()
    (folder / f"{EVIL}.sh").write_text(SPEC)
    (folder / "broken.yaml").write_text("command: [vllm serve\n")
    (folder / f"{EVIL}.jsonl").write_text('{"prompt": "abcabc", "completion": "abcabcabc"}\n{"prompt": 3}\n')
    (folder / f"good{EVIL}.jsonl").write_text('{"prompt": "abcabc", "completion": "abcabcabc"}\n' * 3)
    (folder / "config.json").write_text("[")
    (folder / "trace.log").write_text("x")
    return folder


@pytest.mark.parametrize(
    "words",
    [
        ("doctor", "{0}/{1}.sh"), ("doctor", "{0}"), ("doctor", "{0}/{1}.sh", "--fix", "--write"),
        ("doctor", "{0}/{1}.sh", "--json"), ("doctor", "{0}/none{1}.sh"), ("doctor", SPEC, "--target", "{0}"),
        ("doctor", "{0}/broken.yaml"),
        ("replay", "{0}/{1}.jsonl", "--tokenizer", "bytes"), ("replay", "{0}/good{1}.jsonl", "--tokenizer", "bytes"),
        ("replay", "{0}/good{1}.jsonl", "--tokenizer", "bytes", "--json"), ("replay", "{0}/none{1}"),
        ("replay", "{0}/trace.log"),
        ("suffix", "build", "{0}/good{1}.jsonl", "-o", "{0}/{1}.sx", "--tokenizer", "bytes"),
        ("suffix", "build", "{0}/trace.log", "-o", "{0}/{1}/x", "--tokenizer", "bytes"),
        ("suffix", "show", "{0}/{1}.jsonl"), ("advise", "--target", "{0}", "--gpu", "H200"),
        ("advise", "--target", "llama-3.1-8b", "--gpu", "H200", "--trace", "{0}/{1}.jsonl", "--tokenizer", "bytes"),
        ("models", "show", "{0}"), ("models", "verify", "{0}"), ("models", "remove", "{0}"),
        ("diagnose", "http://127.0.0.1:9", "--log", "{0}/none{1}"), ("monitor", "init", "{0}/trace.log/{1}"),
        ("config", "check", '{{"method": "eagle3", "model": "{0}"}}'), ("generate", "x", "--model", "{0}/{1}"),
        ("serve", "{0}/{1}"), ("certify", "--model", "{0}/{1}"), ("bench", "serve", "http://127.0.0.1:9/{1}"),
    ],
    ids=lambda words: " ".join(words)[:40].replace("\n", " "),
)  # fmt: skip
def test_names_steer_no_terminal(evil: Path, words: tuple[str, ...]) -> None:
    _, said = run(*(word.format(str(evil), EVIL) if "{0}" in word or "{1}" in word else word for word in words))
    assert not steers(said), said
    assert said.strip()


@given(st.text(), st.sampled_from(["", "\n", "\n\t"]))
@settings(max_examples=300, deadline=None)
def test_safe_text(text: str, keep: str) -> None:
    safe = safe_text(text, keep)
    assert safe == "".join(sign for sign in text if sign not in STEERING or sign in keep)
    assert not steers(shown(text))


# - suffix files with a sound checksum ---------------------------------------------------------------------------------


def forged(path: Path, header: Any, tokens: Any) -> Path:
    """A file whose checksum holds, whatever its header says."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    ids = np.asarray(tokens, dtype="<i4").tobytes()
    digest = blake2b(raw + ids, digest_size=16).digest()
    path.write_bytes(struct.pack("<8sIIQ16s", MAGIC, 1, len(raw), len(ids) // 4, digest) + raw + ids)
    return path


GOOD = {"depth": 24, "responses": [["", "a", 3], ["tenant", "b", 2]]}
FORGED: list[tuple[Any, Any, str]] = [
    (b"{", [1], "not JSON"), (b"\xff\xfe", [1], "not JSON"), (b"[" * 100_000, [1], "not JSON"), ([], [], "list of"),
    ({}, [], "list of"), ({"depth": 24, "responses": 3}, [], "list of"),
    ({"depth": 24, "responses": [3]}, [], "list of"),
    ({"depth": 24, "responses": [["", "a"]]}, [], "list of"), ({"depth": 24, "responses": [["", 1, 0]]}, [], "list of"),
    ({"depth": 24, "responses": [[None, "a", 0]]}, [], "list of"),
    ({"depth": 24, "responses": [["", "a", -1]]}, [], "list of"),
    ({"depth": 24, "responses": [["", [], 1]]}, [1], "list of"),
    ({"depth": 24, "responses": [["", "a", 1.0]]}, [1], "list of"),
    ({"depth": 24, "responses": [["", "a", True]]}, [1], "list of"), ({**GOOD, "depth": "24"}, range(5), "depth"),
    ({**GOOD, "depth": 0}, range(5), "depth"), ({**GOOD, "depth": 10**9}, range(5), "depth"),
    ({**GOOD, "depth": None}, range(5), "depth"), (GOOD, range(4), "4 tokens"), (GOOD, range(6), "6 tokens"),
    ({"depth": 24, "responses": [["", "a", 10**400]]}, [1], "1 tokens"), (GOOD, [1, 2, -3, 4, 5], "negative"),
    ({"depth": 24, "responses": [["", "a", 1], ["", "a", 1]]}, [1, 2], "same name"),
]  # fmt: skip


@pytest.mark.parametrize(("header", "tokens", "says"), FORGED, ids=range(len(FORGED)))
def test_forged_headers(tmp_path: Path, header: Any, tokens: Any, says: str) -> None:
    path = forged(tmp_path / "x.suffix", header, list(tokens))
    with pytest.raises(SuffixFileError, match=says):
        load(path)
    code, said = run("suffix", "show", str(path))
    assert code == 2 and says in said and said.count("\n") == 1


def test_a_sound_file_is_read(tmp_path: Path) -> None:
    cache = load(forged(tmp_path / "x.suffix", GOOD, [1, 2, 3, 4, 5]))
    assert [(tenant, name, ids.tolist()) for tenant, name, ids in cache.responses()] == [
        ("", "a", [1, 2, 3]), ("tenant", "b", [4, 5]),
    ]  # fmt: skip
    save(cache, tmp_path / "y.suffix")
    assert load(tmp_path / "y.suffix").max_depth == 24 and isinstance(cache, SuffixCache)


def test_a_size_that_is_only_promised(tmp_path: Path) -> None:
    """Nothing is read, and no memory taken, for bytes that are not there."""
    path = tmp_path / "x.suffix"
    path.write_bytes(struct.pack("<8sIIQ16s", MAGIC, 1, 2**32 - 1, 2**61, b"\0" * 16))
    with pytest.raises(SuffixFileError, match="probably torn"):
        load(path)


# - config.json with odd types -------------------------------------------------------------------------------

ODD: list[tuple[str, Any]] = [
    ("num_hidden_layers", 10**9), ("num_hidden_layers", -1), ("num_hidden_layers", "x"), ("num_attention_heads", 0),
    ("num_attention_heads", 2.5), ("hidden_size", -1), ("hidden_size", [[]]), ("vocab_size", 10**400),
    ("dtype", 1e308), ("attention_bias", None), ("rope_parameters", [1]), ("architectures", 3), ("model_type", []),
    ("layer_types", "x"), ("text_config", {"num_hidden_layers": 10**12}), ("quantization_config", [1]),
]  # fmt: skip


@pytest.mark.parametrize(("key", "value"), ODD, ids=lambda value: str(value)[:20])
def test_odd_types_are_one_line(toy_model: Path, tmp_path: Path, key: str, value: Any) -> None:
    """Loaded or only looked at: it runs, or one line says what is wrong; nobody loops over a billion layers."""
    for file in toy_model.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((toy_model / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, key: value}))
    for words in (
        ("generate", "x", "--model", str(tmp_path), "--max-tokens", "1", "--device", "cpu"),
        ("doctor", SPEC, "--target", str(tmp_path)), ("advise", "--target", str(tmp_path), "--gpu", "H200"),
        ("models", "show", str(tmp_path)),
    ):  # fmt: skip
        code, said = run(*words)
        assert code in (0, 1) or (code == 2 and "error: " in said and len(said) < 1000), said


def test_the_weights_decide_within_plausible_numbers(toy_model: Path, tmp_path: Path) -> None:
    from augury.model.plausible import check_plausible

    check_plausible(toy_model)
    check_plausible(tmp_path)  # nothing there
    for config, fine in (({"num_experts": None, "hidden_size": 64}, True), ({"num_key_value_heads": [2, 4]}, True),
                         ({"num_experts": True}, False), ({"head_dim": [2, "x"]}, False)):  # fmt: skip
        (tmp_path / "config.json").write_text(json.dumps(config))
        if fine:
            check_plausible(tmp_path)
        else:
            with pytest.raises(ModelError, match="is not a number from 0 to"):
                check_plausible(tmp_path)


# - bombs for replay ---------------------------------------------------------------------------------------------------


def bomb(path: Path, piece: bytes, count: int, head: bytes = b"", tail: bytes = b"") -> Path:
    with gzip.open(path, "wb", compresslevel=9) as file:
        file.write(head)
        for _ in range(count):
            file.write(piece)
        file.write(tail)
    return path


def read_all(path: Path) -> list[Any]:
    return list(TraceReader([path], plain=True))


RECORD = b'{"prompt": "a", "completion": "b"}\n'


@pytest.mark.slow
@pytest.mark.parametrize(
    ("head", "piece"),
    [(RECORD, b"x" * (1 << 20)), (RECORD, b"\n" * (1 << 20)), (b"[" + RECORD[:-1], b"," * (1 << 20))],
    ids=["one line", "empty lines", "commas"],
)  # fmt: skip
def test_a_bomb_is_refused_in_bounded_memory(tmp_path: Path, head: bytes, piece: bytes) -> None:
    """Gigabytes out of megabytes would take minutes: it ends at 250 times its size, or at a line that is too long."""
    path = bomb(tmp_path / "x.jsonl.gz", piece, 100, head)
    one_error(bounded("replay", str(path), "--tokenizer", "bytes", megabytes=1500), "x.jsonl.gz", "more than")


def test_text_out_of_proportion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "FREE", 100_000)
    path = bomb(tmp_path / "x.gz", b"\n" * 10_000, 200, RECORD)
    with pytest.raises(TraceError, match="more than 250 times its size"):
        read_all(path)
    sparse = bomb(tmp_path / "y.gz", b"\n" * 1000, 90, RECORD)  # as much out of proportion, but small
    assert len(read_all(sparse)) == 1


def test_a_line_without_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pieces are put together once: characters copied are counted by what is read, not by the square of it."""
    monkeypatch.setattr(traces, "RECORD", 1 << 20)
    monkeypatch.setattr(traces, "CHUNK", 1 << 10)
    path = tmp_path / "x.jsonl"
    path.write_text(RECORD.decode() + "x" * (3 << 20))
    with pytest.raises(TraceError, match="a line has more than 1,048,576 characters"):
        read_all(path)


@given(st.lists(st.text(alphabet="ab \n", max_size=30), max_size=8), st.integers(1, 9))
@settings(max_examples=200, deadline=None)
def test_lines_are_those_of_the_text(parts: list[str], chunk: int) -> None:
    text = "\n".join(parts)

    class Given(traces._Text):
        def __init__(self) -> None:
            self._rest, self.path = text, Path("x")

        def read(self, size: int = -1) -> str:
            piece, self._rest = self._rest[:chunk], self._rest[chunk:]
            return piece

    want = text.split("\n")
    assert list(Given().lines()) == (want if want[-1] else want[:-1])


def test_a_record_or_a_document_that_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "RECORD", 100_000)
    monkeypatch.setattr(traces, "CHUNK", 1 << 12)
    path = tmp_path / "x.json"
    path.write_text('[{"prompt": "' + "x" * 500_000 + '"}]')
    with pytest.raises(TraceError, match=r"record 1: it has more than 100,000 characters"):
        read_all(path)
    path.write_text('{\n"data": [' + "1," * 100_000 + "1]}")
    with pytest.raises(TraceError, match="one document of more than 100,000 characters"):
        read_all(path)


def test_what_is_no_json_is_told_before_the_rest_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "CHUNK", 1 << 12)
    path = tmp_path / "x.json"
    path.write_text('[{"prompt": "a", "completion": "b"}, {"prompt": nonsense' + " " * 1_000_000)
    read = count_reads(monkeypatch)
    with pytest.raises(TraceError, match="record 2: not JSON"):
        read_all(path)
    assert sum(read()) < 200_000


def count_reads(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[int]]:
    sizes: list[int] = []
    real = traces._Text.read

    def counted(self: Any, size: int = -1) -> str:
        text = real(self, size)
        sizes.append(len(text))
        return text

    monkeypatch.setattr(traces._Text, "read", counted)
    return lambda: sizes


@pytest.mark.parametrize("chunk", range(1, 60))
def test_a_list_in_small_pieces_is_the_same_list(chunk: int) -> None:
    """Wherever a piece ends, in a number, a name or an escape: no record is lost, and none is called broken."""
    records = [{"prompt": 'é\\"x', "completion": "ab\u2028", "n": -12.5e3, "flag": [True, None, False]}] * 3
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(traces, "CHUNK", chunk)
        reader = object.__new__(TraceReader)
        reader.torn = []
        stream: Any = Pieces(json.dumps(records))
        found = [value for value, _ in reader._elements(Path("x"), stream)]
    assert found == records and not reader.torn


class Pieces:
    """A text that is read in pieces."""

    def __init__(self, text: str) -> None:
        self.parts: Iterator[str] = iter(text)

    def read(self, size: int = -1) -> str:
        """The next characters."""
        return "".join(sign for _, sign in zip(range(size), self.parts, strict=False))


def test_the_allowance_is_of_one_text() -> None:
    with allowances.one_text():
        allowances.spend(MOST - 10)
        with allowances.one_text():
            allowances.spend(MOST)  # its own
        allowances.spend(10)
        with pytest.raises(ConfigError, match="letters"):
            allowances.spend(1)
