"""`augury replay` and `augury suffix` from end to end: tables, JSON, profiles, plots, mistakes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from augury.cli import app
from augury.config.errors import ConfigError
from augury.config.surfaces import fold_dotted
from augury.tools.shared.profile import check_profile, read_profile

Draft = tuple[list[int], list[int]]  # tokens, parents


def augury(*words: Any) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words], prog_name="augury")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    turns = [
        {"role": "user", "content": "Say it again: one two three."},
        {"role": "assistant", "content": "one two three."},
    ]
    records = [{"messages": turns * 2, "task": f"t{i % 2}", "org": i % 2} for i in range(12)]
    path.write_text("".join(json.dumps(record) + "\n" for record in [*records, {"prompt": "no answer"}]) + '{"mess')
    return path


def test_json_profile_and_plot(trace: Path, tmp_path: Path) -> None:
    profile, plot = tmp_path / "p.json", tmp_path / "p.png"
    done = augury("replay", trace, "--tokenizer", "bytes", "--json", "--profile", profile, "--plot", plot)
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert [one["method"] for one in found["profiles"]] == ["ngram", "suffix"]
    for one in found["profiles"]:
        check_profile(one, "stdout")
        conditions, extra = one["measurement_conditions"], one["replay"]
        assert (conditions["responses"], conditions["without_response"], conditions["torn_records"]) == (24, 1, 1)
        assert conditions["tokenizer"] == "bytes" and conditions["speculative_config"]["method"] == one["method"]
        assert set(one["per_category"]) == {"t0", "t1"} and set(extra["by_turn"]) == {"1", "2"}
        assert sum(one["acceptance_length_histogram"].values()) == extra["drafted_steps"]
        assert extra["last_tenth"]["tokens_per_step"] > 3
    assert found["torn"] == [f"{trace}, line 14"] and "skipped a truncated record" in done.stderr
    assert read_profile(profile) == found["profiles"][found["best"]]
    assert plot.read_bytes()[:4] == b"\x89PNG"


def test_the_legend_lies_on_no_line(trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.figure import Figure

    drawn: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
    six = ("--method", "ngram", "--method", "suffix", "--grid", "num_speculative_tokens=2,4,8")
    assert augury("replay", trace, "--tokenizer", "bytes", *six, "--plot", tmp_path / "p.png").exit_code == 0
    drawn[0].canvas.draw()
    (legend,) = drawn[0].legends
    assert len(legend.get_texts()) == 6 and not any(axis.get_legend() for axis in drawn[0].axes)
    place = legend.get_window_extent()
    assert not any(place.overlaps(axis.get_window_extent()) for axis in drawn[0].axes)
    assert place.x0 >= 0 and place.x1 <= drawn[0].bbox.x1


def test_table(trace: Path) -> None:
    grid = ["--grid", "num_speculative_tokens=2,4", "--grid", "prompt_lookup_max=1,4"]
    done = augury("replay", trace, "--tokenizer", "words", "--method", "ngram", *grid)
    assert done.exit_code == 0, done.stderr
    for words in ("ngram K=2 n=2-4", "ngram K=4 n=2-4 *", "fewest steps", "by turn", "by class", "exactly what the"):
        assert words in " ".join(done.stdout.split()), done.stdout
    assert "1 records hold a prompt and no response" in done.stdout
    assert "left out of the grid" in done.stderr and "prompt_lookup_max=1" in done.stderr


def test_answers_sent_again_are_counted_once(tmp_path: Path) -> None:
    """A log with a record a turn comes to the same as one record with all turns."""
    turns = [{"role": role, "content": f"{role} {n} {n}"} for n in range(3) for role in ("user", "assistant")]
    whole, grown = tmp_path / "whole.jsonl", tmp_path / "grown.jsonl"
    whole.write_text(json.dumps({"messages": turns}))
    grown.write_text("".join(json.dumps({"messages": turns[:n]}) + "\n" for n in (2, 4, 6)))
    found = []
    for path in (whole, grown):
        done = augury("replay", path, "--tokenizer", "bytes", "--method", "ngram", "--json")
        [profile] = json.loads(done.stdout)["profiles"]
        conditions = profile["measurement_conditions"]
        found.append(
            {
                **{key: conditions[key] for key in ("responses", "response_tokens")},
                # The layout ends every record with a new line, which counts as prompt.
                "prompt_tokens": conditions["prompt_tokens"] - conditions["conversations"],
                **{key: profile["replay"][key] for key in ("by_turn", "drafted_steps")},
                "lengths": profile["acceptance_length_histogram"],
            }
        )
        assert conditions["sent_again"] == (0 if path == whole else 3)
    assert found[0] == found[1] and set(found[0]["by_turn"]) == {"1", "2", "3"}
    cache = tmp_path / "c.sfx"
    built = json.loads(augury("suffix", "build", grown, "-o", cache, "--tokenizer", "bytes", "--json").stdout)
    assert built["responses"] == 3, "an engine would have learnt each answer once"
    assert "3 responses were resent" in augury("replay", grown, "--tokenizer", "bytes", "--method", "ngram").stdout


def test_tenants_share_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    said = list(range(100, 140))
    path.write_text(
        "".join(json.dumps({"prompt_token_ids": [i], "token_ids": said, "org": i}) + "\n" for i in range(2))
    )
    words = ("replay", path, "--tokenizer", "bytes", "--method", "suffix", "--json")
    together, apart = augury(*words), augury(*words, "--tenant-field", "org")
    assert json.loads(together.stdout)["profiles"][0]["replay"]["accepted_tokens"] > 30
    assert json.loads(apart.stdout)["profiles"][0]["replay"]["accepted_tokens"] == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["no-such-file"], "no such file"),
        (["TRACE", "--tokenizer", "/nowhere"], "no tokenizer"),
        (["TRACE", "--plot", "/nowhere/p.png"], "no directory"),
        (["TRACE", "--method", "medusa"], "needs a model"),
        (["TRACE", "--preload", "TRACE"], "not a suffix cache"),
        (["TRACE", "--method", "ngram", "--preload", "TRACE"], "none of the methods replayed is suffix"),
        (["TRACE", "--tenant-field", "nope"], "line 1: --tenant-field nope"),
    ],
)
def test_mistakes_in_one_line(words: list[str], message: str, trace: Path) -> None:
    tokenizer = [] if "--tokenizer" in words else ["--tokenizer", "bytes"]
    done = augury("replay", *(trace if word == "TRACE" else word for word in words), *tokenizer)
    assert done.exit_code == 2 and done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    assert message in done.stderr


def test_nothing_to_replay(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("INFO Received request r-1: prompt: 'abc', params: x, prompt_token_ids: None\n")
    done = augury("replay", path, "--tokenizer", "bytes")
    assert done.exit_code == 2 and "1 prompts and no response" in done.stderr


def test_no_configuration_is_lost() -> None:
    """Flags that are repeated reach the command, each of them."""
    words = ["replay", "log.jsonl", "-sc", '{"method": "ngram"}', "--speculative_config", '{"method": "suffix"}']
    folded = fold_dotted(words)
    assert [folded[i + 1] for i, word in enumerate(folded) if word == "--speculative-config"] == [words[3], words[5]]
    with pytest.raises(ConfigError, match="there are 2; write all keys as JSON"):
        fold_dotted([*words, "-sc.num_speculative_tokens", "3"])


def test_suffix_build_show_and_preload(trace: Path, tmp_path: Path) -> None:
    cache = tmp_path / "c.sfx"
    built = augury("suffix", "build", trace, "-o", cache, "--tokenizer", "bytes", "--max-depth", 16, "--json")
    assert built.exit_code == 0, built.stderr
    record = json.loads(built.stdout)
    assert (record["responses"], record["prompts_indexed"], record["tokenizer"]) == (25, 1, "bytes")
    assert record["tokens"] == 24 * len("one two three.!") + len("no answer")
    assert record["file_bytes"] == cache.stat().st_size
    shown = json.loads(augury("suffix", "show", cache, "--json", "--tokenizer", "bytes").stdout)
    assert (shown["max_depth"], shown["tokens"], shown["tenants"]) == (16, record["tokens"], {"": 25})
    assert shown["patterns"][0]["count"] == 24 and shown["patterns"][0]["text"] in "one two three."
    assert "sound" in augury("suffix", "show", cache).stdout


def test_a_preloaded_cache_helps_from_the_first_response_on(tmp_path: Path) -> None:
    corpus, cache = tmp_path / "a.jsonl", tmp_path / "c.sfx"
    corpus.write_text(json.dumps({"prompt": "?", "completion": "abcdefghijklmnopqrstuvwxyz"}))
    assert augury("suffix", "build", corpus, "-o", cache, "--tokenizer", "bytes").exit_code == 0
    words = ("replay", corpus, "--tokenizer", "bytes", "--method", "suffix", "--json")
    cold, warm = (json.loads(augury(*words, *more).stdout) for more in ((), ("--preload", cache)))
    assert cold["profiles"][0]["replay"]["accepted_tokens"] == 0
    assert warm["profiles"][0]["replay"]["accepted_tokens"] > 15


def test_suffix_from_plain_text_and_in_little_room(tmp_path: Path) -> None:
    text, cache = tmp_path / "a.txt", tmp_path / "c.sfx"
    text.write_text("\n".join(f"document number {i} of many" * 20 for i in range(200)) + "\n\n")
    words = ("suffix", "build", text, "-o", cache, "--tokenizer", "words", "--json", "--tenant", "acme")
    whole = json.loads(augury(*words).stdout)
    assert whole["responses"] == 200 and whole["tenants"] == {"acme": 200}
    small = json.loads(augury(*words, "--max-bytes", whole["memory_bytes"] // 2).stdout)
    assert 0 < small["responses"] < 200 and small["memory_bytes"] <= whole["memory_bytes"] // 2


def test_suffix_mistakes(trace: Path, tmp_path: Path) -> None:
    for words, message in [
        (("build", trace, "-o", "/nowhere/x"), "no directory"),
        (("build", trace, "-o", tmp_path / "x", "--tenant", "a", "--tenant-field", "org"), "keep one"),
        (("build", trace, "-o", tmp_path / "x", "--max-bytes", 10, "--tokenizer", "bytes"), "leaves no room"),
        (("show", trace), "not a suffix cache"),
        (("show", tmp_path / "none"), "No such file"),
    ]:
        done = augury("suffix", *words)
        assert done.exit_code == 2 and message in done.stderr and done.stderr.count("\n") <= 2, done.stderr
