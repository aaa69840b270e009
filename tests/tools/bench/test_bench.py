"""The bench: its arithmetic, its order, its report, and small runs of it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from augury.config.errors import ConfigError
from augury.tools.bench import command
from augury.tools.bench.clock import CORE, LAYERS, PARTS, PartClock, watched
from augury.tools.bench.contenders import all_contenders, choose
from augury.tools.bench.figures import Spread, agreement, agreements_of, disturbance, lines_of, parting, ratio
from augury.tools.bench.peers import Ran
from augury.tools.bench.rounds import Key, Measurements, Total, groups_of, jobs_of
from augury.tools.bench.screen import agreement_lines, as_report, conditions_line, table_of
from augury.tools.shared.prompts import SETS, load_prompts

NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1, "prompt_lookup_max": 3}
CONTENDERS = list(all_contenders([NGRAM]).values())


def plan(model: Path | str, prompts: Path | str, **changes: Any) -> command.BenchPlan:
    settings: dict[str, Any] = {
        "model": str(model),
        "peers": ["augury", "augury-ngram"],
        "batches": [1, 2],
        "prompts": [str(prompts)],
        "max_tokens": 6,
        "rounds": 2,
        "threads": 2,
        "dtype": "float32",
        "configs": [NGRAM],
    }
    return command.BenchPlan(**(settings | changes))


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    file = tmp_path / "questions.txt"
    file.write_text('abcabcabc\n{"user": "the cat sat on the mat", "answer": "the cat sat"}\nqqqq\n')
    return file


@pytest.fixture
def record() -> Measurements:
    """Two rounds at batch 1; in the second everybody is half as fast."""
    made = Measurements()
    for number, slow in enumerate((1.0, 2.0)):
        for name, seconds in (("transformers", 4.0), ("augury", 2.0), ("augury-ngram", 1.0)):
            drafted = (2, 8, 4) if name == "augury-ngram" else (0, 0, 0)
            ran = Ran(seconds * slow, [[1, 2, 3, 4], [5, 6, 7, 8]], *drafted)
            made.add(Key("chat", 1, name), number, [0, 1], ran)
    return made


def test_spread_and_ratio_are_paired_by_round() -> None:
    assert Spread.of([3.0, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0)
    ours, theirs = [Total(1.0, 10), Total(2.0, 10)], [Total(2.0, 10), Total(4.0, 10)]
    assert ratio(ours, theirs) == Spread(2.0, 2.0, 2.0)  # a slow round slows both
    assert ratio(ours, ours) is None and ratio(ours, None) is None


def test_lines(record: Measurements) -> None:
    lines = {line.contender: line for line in lines_of(record, CONTENDERS)}
    assert list(lines) == ["transformers", "augury", "augury-ngram"]
    assert lines["augury"].speed == Spread(3.0, 2.0, 4.0)
    assert lines["augury"].to_baseline == Spread(2.0, 2.0, 2.0) and lines["augury"].to_plain is None
    ngram = lines["augury-ngram"]
    assert ngram.to_plain == Spread(2.0, 2.0, 2.0)
    assert ngram.acceptance_rate == 0.5 and ngram.acceptance_length == 3.0
    assert lines["transformers"].acceptance_rate is None


def test_agreement(record: Measurements) -> None:
    record.answers[Key("chat", 1, "augury-ngram")][1] = [5, 6, 0, 8]
    found = {(a.contender, a.other): a for a in agreements_of(record, CONTENDERS)}
    assert found["augury", "transformers"].whole
    assert found["augury-ngram", "augury"].equal == 1
    assert found["augury-ngram", "augury"].first_difference == 2
    said = agreement_lines(list(found.values()))
    assert ("augury gives the tokens of transformers in 2 of 2 answers", True) in said
    assert ("  chat, batch 1: 1 of 2, the first difference is at token 2", False) in said
    assert parting([1, 2], [1, 2]) is None and parting([1, 2], [1]) == 1
    assert agreement(Key("chat", 1, "a"), "b", {0: [1], 3: [2]}, {0: [1]}).total == 1


def test_report_is_json_with_every_round(record: Measurements) -> None:
    conditions = command.conditions_of(plan("default", "chat"), {"chat": 2}, None)
    lines = lines_of(record, CONTENDERS)
    report = json.loads(json.dumps(as_report(conditions, lines, agreements_of(record, CONTENDERS), {}, {"x": "died"})))
    assert set(report) == {"conditions", "results", "agreement", "left_out", "broken"}
    ours = next(line for line in report["results"] if line["contender"] == "augury")
    assert [r["tokens_per_second"] for r in ours["rounds"]] == [4.0, 2.0]
    assert ours["speed"] == {"median": 3.0, "low": 2.0, "high": 4.0}
    assert "2 threads" in conditions_line(conditions) and "K=4" in conditions_line(conditions)
    assert table_of(lines).row_count == 3


def test_disturbance_is_the_share_others_took(record: Measurements) -> None:
    assert disturbance(record, 2) == 0.0 == disturbance(Measurements(), 2)
    record.add(Key("chat", 1, "augury"), 1, [0], Ran(0.0, [[]], foreign=4.2))
    assert disturbance(record, 2) == pytest.approx(0.1)  # of 21 seconds on two processors


def test_a_broken_contender_leaves_the_table_but_not_the_report(record: Measurements) -> None:
    record.drop("augury", "out of memory")
    assert all(line.contender != "augury" for line in lines_of(record, CONTENDERS))
    assert record.broken == {"augury": "out of memory"}


def test_groups() -> None:
    assert groups_of(12, 8) == [list(range(8))]
    assert groups_of(4, 2) == [[0, 1], [2, 3]]
    assert groups_of(3, 8) == [[0, 1, 2, 0, 1, 2, 0, 1]]


def test_every_contender_does_the_same_work() -> None:
    workers: list[Any] = [SimpleNamespace(contender=contender) for contender in CONTENDERS]
    done: dict[tuple[str, int], list[int]] = {}
    for job in jobs_of(workers, 5, [1, 2, 8], turn=1):
        for batch in job.batches:
            done.setdefault((job.worker.contender.name, batch), []).extend(job.group)
    for batch, expected in ((1, range(5)), (2, range(4)), (8, [0, 0, 1, 1, 2, 2, 3, 4])):
        for contender in CONTENDERS:
            if (contender.name, batch) != ("transformers-batch", 1):
                assert sorted(done[contender.name, batch]) == list(expected)
    assert ("transformers-batch", 1) not in done


def test_neighbours_change() -> None:
    workers: list[Any] = [SimpleNamespace(contender=CONTENDERS[i]) for i in (0, 5, 6)]
    firsts = [job.worker.contender.name for job in jobs_of(workers, 3, [1], turn=0)][::3]
    assert len(set(firsts)) == 3


def test_contenders_that_cannot_run_are_left_out_or_refused() -> None:
    chosen, left_out = choose([], [NGRAM], gguf=None)
    assert "augury" in [c.name for c in chosen] and {"llamacpp", "llamacpp-lookup", "ik-llamacpp"} <= set(left_out)
    with pytest.raises(ConfigError, match="unknown; choose from transformers"):
        choose(["vllm"], [NGRAM], None)
    with pytest.raises(ConfigError, match="llamacpp"):
        choose(["llamacpp"], [NGRAM], None)


def test_every_configuration_is_a_contender_of_its_own() -> None:
    """Named after what it drafts with; by their tokens, where two have one name."""
    parallel = {"method": "eagle3", "num_speculative_tokens": 3, "parallel_drafting": True}
    one, other = {"method": "eagle3", "num_speculative_tokens": 3}, {"method": "eagle3", "num_speculative_tokens": 5}
    known = all_contenders([NGRAM, one, parallel])
    assert [known[f"augury-{name}"].speculative for name in ("ngram", "eagle3", "p-eagle")] == [NGRAM, one, parallel]
    assert known["augury-p-eagle-fast"].arithmetic == "fast"
    assert {"augury-eagle3-K3", "augury-eagle3-K5"} <= set(all_contenders([one, other]))
    with pytest.raises(ConfigError, match="two are called eagle3-K3"):
        all_contenders([one, dict(one)])
    with pytest.raises(ConfigError, match="give it once"):
        command.bench(speculative_config=['{"method": "ngram"}', '{"method": "suffix"}'], profile=True)


def test_prompt_sets(questions: Path, tmp_path: Path) -> None:
    assert len(SETS["chat"]) == 12 and len(SETS["edit"]) == 8
    assert all(prompt.answer and prompt.answer.strip() in prompt.user for prompt in SETS["edit"])
    loaded = load_prompts(str(questions))
    assert [p.user for p in loaded] == ["abcabcabc", "the cat sat on the mat", "qqqq"]
    assert loaded[1].messages()[-1] == {"role": "assistant", "content": "the cat sat"}
    with pytest.raises(ConfigError, match="neither a file"):
        load_prompts("nothing-here")
    (tmp_path / "bad").write_text('{"question": 1}\n')
    with pytest.raises(ConfigError, match="cannot read"):
        load_prompts(str(tmp_path / "bad"))
    (tmp_path / "marked").write_bytes(b"\xef\xbb\xbfein Bl\xc3\xbcmchen\n")  # as editors on Windows save UTF-8
    assert [p.user for p in load_prompts(str(tmp_path / "marked"))] == ["ein Blümchen"]
    (tmp_path / "latin").write_bytes(b"ein Bl\xfcmchen\n")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_prompts(str(tmp_path / "latin"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch": "1,x"}, "--batch"),
        ({"speculative_config": ["{"]}, "not JSON"),
        ({"speculative_config": ["null"]}, "JSON object"),
        ({"dtype": "int4"}, "--dtype"),
        ({"plot": Path("/no/such/place/x.png")}, "--plot"),
    ],
)
def test_bad_options_are_one_line(options: dict[str, Any], message: str) -> None:
    defaults = {"model": "default", "peers": "", "batch": "1", "prompts": "chat", "max_tokens": 1, "rounds": 1}
    with pytest.raises(ConfigError, match=message):
        command.bench(**(defaults | options))


def test_clock_counts_every_moment_once() -> None:
    clock = PartClock()
    inner = clock.timed("inner", lambda: time.sleep(0.02))

    def work() -> None:
        time.sleep(0.01)
        inner()
        inner()

    begun = time.perf_counter()
    clock.timed(lambda: "outer", work)()
    whole = time.perf_counter() - begun
    assert clock.spent["inner"] >= 0.04 and clock.spent["outer"] >= 0.01
    assert sum(clock.spent.values()) == pytest.approx(whole, abs=0.002)


def test_watching_changes_no_token_and_leaves_no_trace(toy_model: Path) -> None:
    from augury import LLM, SamplingParams
    from augury.engine import advance
    from augury.engine.request import Request
    from augury.kernels import choose as choose_ops

    spec = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
    llm = LLM(str(toy_model), device="cpu", max_model_len=256, speculative_config=spec)
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    before = llm.generate("abcabcabc", params, use_tqdm=False)[0].outputs[0].token_ids
    names = set(vars(llm.engine)), set(vars(choose_ops(llm.engine.target.device))), advance.lay_out, Request.accept
    with watched(llm.engine) as steps:
        during = llm.generate("abcabcabc", params, use_tqdm=False)[0].outputs[0].token_ids
    assert during == before
    ops = choose_ops(llm.engine.target.device)
    assert (set(vars(llm.engine)), set(vars(ops)), advance.lay_out, Request.accept) == names
    assert steps.read_tokens == len("abcabcabc")  # a token a byte
    assert 0 < len(steps.decode) <= 11 and steps.tokens >= len(steps.decode)
    assert all(set(step) <= set(PARTS) and set(CORE) - {LAYERS} <= set(step) for step in steps.decode)


def test_bench_of_a_toy(toy_model: Path, questions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two worker processes, end to end, with the picture."""
    picture = tmp_path / "bench.png"
    report = command.run_bench(plan(toy_model, questions), as_json=True, plot=picture)
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(report))
    assert {(r["batch"], r["contender"]) for r in report["results"]} == {
        (batch, name) for batch in (1, 2) for name in ("augury", "augury-ngram")
    }
    assert all(len(r["rounds"]) == 2 and r["speed"]["median"] > 0 for r in report["results"])
    assert all(a["equal"] == a["total"] for a in report["agreement"]) and len(report["agreement"]) == 2
    assert not report["broken"] and report["conditions"]["disturbance"] >= 0
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_bench_of_the_embedded_model(default_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On two short prompts of the set `edit`: reading prompts is most of what a bench of a few tokens does."""
    edits = tmp_path / "edits.jsonl"
    edits.write_text("".join(json.dumps({"user": p.user, "answer": p.answer}) + "\n" for p in SETS["edit"][5:7]))
    report = command.run_bench(plan(default_model, edits, batches=[2], rounds=1, max_tokens=12))
    assert not report["broken"]
    ours = {r["contender"]: r for r in report["results"]}
    assert ours["augury-ngram"]["acceptance_rate"] > 0.3
    assert "augury-ngram" in capsys.readouterr().out
