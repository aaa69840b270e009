"""`augury bench gpu` on a toy and a CPU: figures that add up, drafters that share a target, and one kernel alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from augury.cli import app
from augury.config.errors import ConfigError
from augury.tools.bench.gpu import roofline
from augury.tools.bench.gpu import run as running
from augury.tools.bench.gpu.anchors import FIGURES, peer_of
from augury.tools.bench.gpu.counting import Operations
from augury.tools.bench.gpu.micro import measure_micro
from augury.tools.bench.gpu.micro_cases import BLOCK, chain_rows
from augury.tools.bench.gpu.roofline import copy_speed, drafter_elements, layer_elements, step_bytes
from augury.tools.bench.gpu.run import measure
from augury.tools.bench.gpu.screen import line_of
from augury.tools.bench.gpu.shapes import SHAPES, drafter_of
from augury.tools.bench.gpu.verify_cases import text_logits

pytestmark = pytest.mark.usefixtures("one_thread")
SMALL: dict[str, Any] = {"shape": "toy", "batches": [1, 2], "prompt": 16, "new": 13, "device": "cpu"}
ALL = ["none", "eagle", "eagle3", "mtp", "medusa", "mlp_speculator", "dflash", "draft:toy-draft", "ngram", "suffix"]


@pytest.fixture(scope="module", autouse=True)
def _small_copies() -> Iterator[None]:
    """Every report measures copies, of 64 MB ten times: a figure of the machine, which no test but one looks at."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(roofline, "CPU_BYTES", 4 << 20)
        yield


@pytest.fixture(scope="module")
def report(_small_copies: None) -> dict[str, Any]:
    """Two drafters with all details."""
    said: list[str] = []
    found = measure(**SMALL, drafters=["none", "eagle3"], on_row=lambda row: said.append(line_of(row)))
    return {**found, "said": said}


def test_figures_add_up(report: dict[str, Any]) -> None:
    rows = report["rows"]
    assert [(row["drafter"], row["batch"]) for row in rows] == [("none", 1), ("none", 2), ("eagle3", 1), ("eagle3", 2)]
    for row in rows:
        assert row["tok_s"] == pytest.approx(row["batch"] * 13 / row["seconds"])
        assert row["step_ms"] * row["steps"] == pytest.approx(1000 * row["seconds"])
        assert row["peer"] is None
        split = row["split"]
        parts = split["layout_target_ms"] + split["verify_draft_ms"] + split["gap_ms"]
        assert parts == pytest.approx(split["wall_ms"])
        assert min(split["layout_target_ms"], split["verify_draft_ms"]) > 0
        assert row["roofline_ms"] == pytest.approx(sum(row["bytes"].values()) / report["copy_tb_s"] / 1e9)
    # A step each for the prompt's token and those after it; three tokens a step from then on.
    assert [row["steps"] for row in rows] == [13, 13, 5, 5]
    # The target's pass is the same, with next to no operation of torch's; the drafter's come on top.
    assert rows[2]["kernels"]["kernels"] > rows[0]["kernels"]["kernels"] + 8 > 9
    assert [line.split(":")[0] for line in report["said"]] == [
        "none batch 1",
        "none batch 2",
        "eagle3 K=3 L=3 batch 1",
        "eagle3 K=3 L=3 batch 2",
    ]


@pytest.mark.parametrize("name", ALL)
def test_every_drafter_runs(name: str) -> None:
    found = measure(**{**SMALL, "batches": [2]}, drafters=[name], k=2, length=2.5, detail=False)
    (row,) = found["rows"]
    assert row["tok_s"] > 0
    assert found["left_out"] == []


def test_a_tree() -> None:
    tree = {"tree": {"max_nodes": 6, "top_k": 2}}
    found = measure(**{**SMALL, "batches": [1]}, drafters=["eagle3"], k=3, length=3.0, extra=tree)
    (row,) = found["rows"]
    assert row["steps"] < 13
    assert row["kernels"]["kernels"] > 100


def test_minutes_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(0, 10_000, 20))
    monkeypatch.setattr(running.time, "monotonic", lambda: float(next(now)))
    found = measure(**SMALL, drafters=["none", "ngram"], minutes=3.0, detail=False)
    assert found["rows"] == []
    assert found["left_out"] == ["none: the 3 minutes were over", "ngram: the 3 minutes were over"]


def test_operations_of_the_reference_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The counter sees every operation of torch; the compiled loops of a CPU, and numpy's noise, it does not."""
    monkeypatch.setattr("augury.kernels.faces.asked", lambda: "torch")
    rows = measure(**{**SMALL, "batches": [1]}, drafters=["none", "eagle3"])["rows"]
    plain, drafted = (row["kernels"]["kernels"] for row in rows)
    assert drafted > plain + 400 > 400 + 400


def test_minutes_end_it_between_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, now = list[dict[str, Any]](), [0.0]
    monkeypatch.setattr(running.time, "monotonic", lambda: now[0])

    def late(row: dict[str, Any]) -> None:
        rows.append(row)
        now[0] = 999.0

    found = measure(**SMALL, drafters=["none", "none"], minutes=3.0, detail=False, on_row=late)
    assert found["rows"] == rows
    assert [row["batch"] for row in rows] == [1]
    assert found["left_out"] == ["none from batch 2 on: the 3 minutes were over"]


def test_a_drafter_that_does_not_fit_leaves_the_others_their_rows() -> None:
    found = measure(**{**SMALL, "shape": "toy-draft", "batches": [1]}, drafters=["none", "eagle3"], detail=False)
    assert [row["drafter"] for row in found["rows"]] == ["none"]
    assert [words.partition(", ")[0] for words in found["left_out"]] == ["eagle3: the head reads layers [2"]


def test_unknown_names() -> None:
    with pytest.raises(ConfigError, match="--shape nothing: no such shape; there are llama-8b"):
        measure("nothing")
    with pytest.raises(ConfigError, match="--drafter nothing: unknown"):
        measure("toy", ["nothing"])
    with pytest.raises(ConfigError, match="--drafter draft:nothing: no such shape"):
        measure("toy", ["draft:nothing"])


def test_peers_are_shown_for_their_own_case_alone() -> None:
    shape = SHAPES["llama-8b"]
    drafter = drafter_of("eagle3", shape, None, None)
    assert peer_of("llama-8b", drafter, 128, 512, 64, "NVIDIA H200") == {"name": "vLLM 0.26.0", "tok_s": 16100}
    assert peer_of("llama-8b", drafter_of("draft:llama-1b", shape, None, None), 128, 512, 1, "NVIDIA H200") is not None
    assert peer_of("llama-8b", drafter_of("none", shape, 3, 3.0), 128, 512, 8, "NVIDIA H200") is not None
    for other in (
        ("llama-1b", drafter, 128, 512, 64, "NVIDIA H200"),
        ("llama-8b", drafter, 128, 256, 64, "NVIDIA H200"),
        ("llama-8b", drafter, 128, 512, 65, "NVIDIA H200"),
        ("llama-8b", drafter, 128, 512, 64, "NVIDIA H100 80GB HBM3"),
        ("llama-8b", drafter_of("eagle3", shape, 4, 3.0), 128, 512, 64, "NVIDIA H200"),
        ("llama-8b", drafter_of("eagle3", shape, 3, 3.0, {"tree": {}}), 128, 512, 64, "NVIDIA H200"),
    ):
        assert peer_of(*other) is None
    assert all(case.shape in SHAPES for case in FIGURES)


def test_bytes_of_the_known_model() -> None:
    """Against what the anchors say: 16.06 GB less the embeddings is 15.0, an EAGLE-3 pass about 0.85 GB with its fc."""
    shape = SHAPES["llama-8b"]
    plain = step_bytes(shape, drafter_of("none", shape, None, None), 1, 0, 2)
    assert sum(plain.values()) == plain["target"] == pytest.approx(15.0e9, rel=0.002)
    assert layer_elements(shape) == 4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336
    eagle = drafter_of("eagle3", shape, 1, 2.0)
    assert 2 * drafter_elements(shape, eagle) == pytest.approx(0.85e9, rel=0.05)
    long = step_bytes(shape, eagle, 8, 100, 2)
    assert long["target_kv"] == 8 * 100 * 2 * 8 * 128 * 32 * 2
    assert long["drafter_kv"] == 8 * 100 * 2 * 8 * 128 * 2
    assert copy_speed(torch.device("cpu")) > 1e8


def test_operations_are_counted_and_views_are_not() -> None:
    x = torch.ones(4, 4)
    with Operations() as operations:
        (x.view(16)[2:].t() + 1).sum()
    assert dict(operations.seen) == {"add": 1, "sum": 1}


@pytest.mark.parametrize("kernel", ["attend", "linear", "verify", "norm", "rope"])
def test_micro(kernel: str) -> None:
    found = measure_micro(kernel, "toy", [1, 3], tokens=2, context=21, device="cpu")
    assert (found["face"], found["reference"]) == ("NumbaOps", "TorchOps")
    for row in found["rows"]:
        assert row["difference"] < 1e-4
        assert row["ratio"] == pytest.approx(row["reference_us"] / row["us"])
        assert row["gb_s"] == pytest.approx(row["bytes"] / row["us"] / 1000)


def test_rules_are_measured_on_lines_as_peaked_as_text() -> None:
    logits = text_logits(24, 128_256, torch.device("cpu"))
    law = torch.softmax(logits, 1)
    assert 2.0 < float(-(law * law.log()).sum(1).mean()) < 3.4
    kept = (torch.softmax(logits / 0.8, 1).sort(1, descending=True).values.cumsum(1) < 0.9).sum(1) + 1
    assert 2 <= int(kept.median()) <= 8


def test_a_share_of_a_step_is_told() -> None:
    found = measure_micro("verify", "toy", [2], tokens=3, context=21, device="cpu", steps={2: 5.0})
    assert [row["case"].split()[0] for row in found["rows"]] == ["coupled", "coupled", "standard", "block"]
    assert all(row["of_step"] == pytest.approx(row["us"] / 5000) for row in found["rows"])
    assert (found["k"], found["gpu"], found["rows"][0]["batch"]) == (3, "CPU", 2)


def test_chain_rows_see_the_text_and_their_ancestors() -> None:
    rows = chain_rows(2, 2, 20, torch.device("cpu"))
    assert rows.positions.tolist() == [19, 20, 21] * 2
    assert rows.ancestors.tolist() == [0, 1, 3] * 2
    assert len(set(rows.write.tolist())) == 6
    assert (rows.write // BLOCK).tolist() == rows.block_tables[rows.slots, rows.positions // BLOCK].tolist()


def test_the_command() -> None:
    words = ["bench", "gpu", "--shape", "toy", "--device", "cpu", "--batch", "1,2", "--new", "8", "--prompt", "16"]
    done = CliRunner().invoke(app, [*words, "--drafter", "none,eagle3", "--kernels"], prog_name="augury")
    assert done.exit_code == 0, done.output
    assert "toy: tokens a second" in done.stdout
    assert "eagle3 K=3 L=3" in done.stdout
    as_json = CliRunner().invoke(app, [*words, "--no-detail", "--json"], prog_name="augury")
    assert [row["batch"] for row in json.loads(as_json.stdout)["rows"]] == [1, 2]
    micro = CliRunner().invoke(app, [*words, "--micro", "norm", "--json"], prog_name="augury")
    assert json.loads(micro.stdout)["kernel"] == "norm"
    share = CliRunner().invoke(app, [*words, "--micro", "verify", "--drafter", "eagle3"], prog_name="augury")
    assert "standard T=0.8 top-p 0.9, 2x4" in share.stdout
    assert "step" in share.stdout
    tree = CliRunner().invoke(
        app, [*words, "--drafter", "suffix", "--spec", '{"tree": {"max_nodes": 4}}', "--no-detail"], prog_name="augury"
    )
    assert 'speculative_config {"tree": {"max_nodes": 4}}' in tree.stdout
    once = CliRunner().invoke(app, [*words, "--batch", "1, 1", "--no-detail", "--json"], prog_name="augury")
    assert len(json.loads(once.stdout)["rows"]) == 1


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (["--batch", "0"], "--batch 0: write batch sizes"),
        (["--drafter", "no"], "--drafter no: unknown"),
        (["--drafter", "eagle3", "--spec", "[1]"], "--spec must be a JSON object"),
        (["--drafter", "eagle3", "--spec", "{"], "--spec is not JSON"),
        (["--k", "3", "--length", "2"], "--k, --length: --drafter none drafts nothing"),
        (["--micro", "norm", "--exact", "--drafter", "eagle3"], "--drafter, --exact: --micro measures one kernel"),
        (["--batch", "9000"], "--batch 9000: at most 8192"),
        (["--drafter", ""], "--drafter: name at least one"),
        (
            ["--drafter", "none,eagle3", "--length", "5"],
            "--length 5: 3 drafted tokens and the target's own make at most 4",
        ),
        (["--drafter", "eagle3", "--k", "64"], "--k 64: at most 63"),
        (["--drafter", "draft:llama-1b"], "--drafter draft:llama-1b: its vocabulary has 128256 tokens"),
        (["--prompt", "4090"], "--prompt, --new: 4352 tokens with the room that drafts need, and toy has 4096"),
        (["--micro", "rope", "--prompt", "9999"], "--prompt, --new: 10001 tokens"),
        (["--batched-tokens", "1", "--batch", "4"], "--batched-tokens 1: every request needs a row; write 4 or more"),
        (["--no-detail", "--kernels"], "--kernels: --no-detail counts none"),
        (["--micro", "verify", "--drafter", "eagle3,mtp"], "--drafter eagle3,mtp: --micro verify takes one"),
        (["--minutes", "1e-9"], "--minutes 1e-09: over before anything was measured"),
    ],
)
def test_wrong_options_are_named(wrong: list[str], message: str) -> None:
    words = ["bench", "gpu", "--shape", "toy", "--device", "cpu", "--batch", "1", "--new", "4", "--prompt", "4"]
    done = CliRunner().invoke(app, [*words, *wrong], prog_name="augury")
    assert done.exit_code != 0 and message in f"{done.output} {done.exception}"


@pytest.mark.parametrize("key", ["method", "num_speculative_tokens", "synthetic_acceptance_length"])
def test_what_a_row_is_named_by_is_no_further_key(key: str) -> None:
    with pytest.raises(ConfigError, match=f"--spec: the bench sets {key} itself; use --drafter, --k, --length"):
        drafter_of("eagle3", SHAPES["toy"], 3, 3.0, {key: 5})


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match="--device cuda: torch sees no GPU"):
        measure(**{**SMALL, "device": "cuda"})
    with pytest.raises(ConfigError, match="--device cuda"):
        measure_micro("attend", "toy", [1], 0, 16, "cuda")
