"""`augury bench --methods`: every method on the same prompts, with what it accepts and what it costs.

Methods with weights run on gate heads (augury.train.gates): trained on these very prompts, which checks the code
path and says nothing about a method's quality.
"""

from __future__ import annotations

import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from augury.config.errors import ConfigError
from augury.methods.registry import METHODS
from augury.tools.bench.methods_lines import MethodLine, choose_lines
from augury.tools.bench.plan import limit_threads

if TYPE_CHECKING:
    from augury.tools.bench.methods_run import MethodRecord, MethodWorker
    from augury.tools.bench.plan import BenchPlan
    from augury.train.gates import GateHead, Gates

Prompts = dict[str, list[list[int]]]


def run_methods(
    plan: BenchPlan, methods: list[str], retrain: bool = False, as_json: bool = False, plot: Path | None = None
) -> dict[str, Any]:
    """Train what is missing, measure, print table or JSON, draw the picture, and return the report."""
    from augury.tools.bench.methods_screen import conditions_line, conditions_of, report_of, show
    from augury.tools.bench.plan import find_weights, tokenize
    from augury.tools.bench.plots import plot_methods
    from augury.tools.shared.terminal import output_console, print_json

    lines, left_out = choose_lines(methods)
    limit_threads(plan.threads)  # before torch loads
    directory = Path(find_weights(plan.model, as_json)[0])
    prompts = tokenize(plan.prompts, str(directory))
    gates = find_gates(lines, directory, prompts, plan.max_tokens, retrain)
    record = measure(plan, lines, directory, prompts, gates)
    conditions = conditions_of(plan, {name: len(every) for name, every in prompts.items()}, record)
    report = report_of(conditions, lines, record, gates, left_out)
    if as_json:
        print_json(report)
    else:
        show(output_console(), report)
    if plot is not None and report["results"]:
        plot_methods(report["results"], conditions_line(conditions), plot)
    return report


def find_gates(
    lines: list[MethodLine], directory: Path, prompts: Prompts, length: int, retrain: bool
) -> dict[str, GateHead]:
    """A gate head for every kind the lines need, from the cache or trained now."""
    from augury.train.gates import Gates

    kinds = list(dict.fromkeys(line.gate for line in lines if line.gate))
    every = list({tuple(ids): ids for many in prompts.values() for ids in many}.values())
    home = Gates(directory, every, length)
    return {kind: (None if retrain else home.find(kind)) or _train(home, kind) for kind in kinds}


def _train(home: Gates, kind: str) -> GateHead:
    from augury.tools.shared.progress import progress
    from augury.tools.shared.terminal import waiting
    from augury.train.gates import KINDS

    with waiting("having the prompts answered, to train on", lines=True):
        _ = home.study
    with progress(f"training a gate head for {kind}", KINDS[kind].recipe.steps) as tick:
        return home.train(kind, tick=lambda loss: tick(f"training a gate head for {kind}: loss {loss:.2f}"))


def measure(
    plan: BenchPlan, lines: list[MethodLine], directory: Path, prompts: Prompts, gates: dict[str, GateHead]
) -> MethodRecord:
    """Build all engines, then run all rounds."""
    from augury.tools.bench.methods_run import MethodRecord
    from augury.tools.bench.rounds import Bench
    from augury.tools.shared.progress import progress

    record = MethodRecord()
    room = max(len(ids) for every in prompts.values() for ids in every) + plan.max_tokens + 64
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="augury-bench-"))
        workers: list[MethodWorker] = []
        with progress("loading", len(lines)) as tick:
            for line in lines:
                tick(f"loading {line.name}")
                worker = _build(line, directory, plan, room, gates, folder, record)
                workers += [worker] if worker else []
        bench = Bench(workers, prompts, plan.batches, plan.max_tokens, lambda _: None, record)  # type: ignore[arg-type]
        with progress("warming up", bench.size(plan.rounds)) as tick:
            bench.tick, bench.forecast = tick, lambda line: print(line, file=sys.stderr, flush=True)
            bench.run(plan.rounds)
    return record


def _build(
    line: MethodLine,
    directory: Path,
    plan: BenchPlan,
    room: int,
    gates: dict[str, GateHead],
    folder: str,
    record: MethodRecord,
) -> MethodWorker | None:
    """The engine of a line; None if it cannot be built, with the reason in the record."""
    from augury.model.checkpoint import read_config
    from augury.model.errors import ModelError
    from augury.tools.bench.methods_run import MethodWorker

    config = read_config(directory)
    room = min(room, config.max_position_embeddings)
    engine: dict[str, Any] = {"dtype": plan.dtype, "max_model_len": room, "max_num_seqs": max(plan.batches)}
    spec = dict(line.speculative)
    card = METHODS.get(line.method or "")
    if card and card.weights == "target":
        assert line.gate
        directory = gates[line.gate].directory  # the layer is part of the target's checkpoint
    elif line.gate:
        spec["model"] = str(gates[line.gate].directory)
    if card and card.saves_states:
        spec, transfer = saving(config.num_hidden_layers, folder)
        engine["kv_transfer_config"] = transfer
    try:
        return MethodWorker(line, directory, engine | ({"speculative_config": spec} if line.method else {}))
    except (ConfigError, ModelError) as error:
        record.broken[line.name] = str(error)
        return None


def saving(layers: int, folder: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The two configurations of extract_hidden_states, which saves EAGLE-3's layers into a temporary folder."""
    from augury.train.study import stream_layers

    ids = list(stream_layers(layers))
    spec = {
        "method": "extract_hidden_states",
        "num_speculative_tokens": 1,
        "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": ids}},
    }
    transfer = {
        "kv_connector": "ExampleHiddenStatesConnector",
        "kv_role": "kv_producer",
        "kv_connector_extra_config": {"shared_storage_path": folder},
    }
    return spec, transfer
