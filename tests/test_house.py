"""The house: a room imports only from floors below it, operators' rooms never import torch, methods have drafters."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

from conftest import LONGEST

from augury.cli import LATER
from augury.methods.registry import METHODS, drafter_class

SOURCE = Path(__file__).parents[1] / "src" / "augury"
TESTS = Path(__file__).parent
FLOORS = [
    {"methods", "index", "observe"},
    {"config", "verify"},
    {"kernels", "parallel"},
    {"model"},
    {"drafters"},
    {"engine"},
    {"serve", "train", "compat", "plugins"},
    {"scale"},
    {"tools"},
    {"cli", "__init__"},
    {"__main__"},
]
CORE = {"methods", "index", "observe", "config", "verify", "kernels", "model", "drafters", "engine"}
TOOLS = SOURCE / "tools"
# Which tools import which others, besides tools/shared, and what for.
NEIGHBOURS = {
    ("certify", "knowledge"),  # the rules that cover a red cell
    ("certify", "doctor"),  # what a server's command tells of it
    ("doctor", "knowledge"),  # what is known of vLLM's releases and pitfalls
    ("advise", "knowledge"),
    ("live", "knowledge"),
    ("monitor", "knowledge"),
    ("live", "doctor"),  # a server's configuration, examined
    ("advise", "doctor"),  # which release is meant
    ("advise", "replay"),  # acceptance from the user's own trace
    ("suffix", "replay"),  # a corpus is read as a trace is
    ("load", "replay"),  # as is a file of prompts
    ("load", "live"),  # a server's counters before and after
    ("train", "advise"),  # the GPU and the target of a plan
    ("train", "knowledge"),  # what trainings have bought so far
    ("train", "live"),  # a swapped drafter is judged by the server's counters
    ("tune", "load"),
    ("advise", "live"),  # lengths and load from a running server's metrics
    ("tune", "live"),
    ("tune", "bench"),  # weights, prompts and conditions of a measurement on this machine
    ("capacity", "advise"),  # what a step costs
    ("capacity", "replay"),  # a trace is read as there
    ("bench", "advise"),  # the cost curve, which bench writes and advise reads
}
LIGHT = ("doctor", "knowledge", "advise", "replay", "capacity", "suffix", "live", "monitor", "load", "shared")
LEVEL = {room: level for level, rooms in enumerate(FLOORS) for room in rooms}


def imported(path: Path, late: bool = True, guarded: bool = False) -> set[str]:
    """Names a file imports at run time, `late` in functions too; what `if TYPE_CHECKING` guards only if `guarded`."""
    found = set()
    skipped: set[ast.AST] = set()
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        for_types = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        if (for_types and not guarded) or (isinstance(node, ast.FunctionDef) and not late):
            skipped.update(ast.walk(node))
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            found.update(a.name for a in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.update(f"{node.module}.{a.name}" for a in node.names)
    return {name for name in found if name.startswith("augury.")}


def imports(path: Path) -> set[str]:
    """Rooms a file imports."""
    return {name.split(".")[1] for name in imported(path)}


def test_rooms_import_only_from_below() -> None:
    wrong = []
    for path in SOURCE.rglob("*.py"):
        room = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        for other in imports(path) - {room, "__version__"}:
            if LEVEL[other] >= LEVEL[room]:
                wrong.append(f"{path.relative_to(SOURCE)} imports {other}")
    assert not wrong, wrong


def test_types_come_from_below_too() -> None:
    """But for the decoder layer: a fused kernel takes one apart, and the layer calls the kernels."""
    above = set()
    for path in SOURCE.rglob("*.py"):
        room = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        for name in imported(path, guarded=True):
            if (other := name.split(".")[1]) in LEVEL and other != room and LEVEL[other] >= LEVEL[room]:
                above.add((room, name))
    assert above == {("kernels", "augury.model.layers.Layer")}


def test_no_module_comes_back_to_itself() -> None:
    paths = {path: path.relative_to(SOURCE).with_suffix("").parts for path in SOURCE.rglob("*.py")}
    files = {".".join(("augury", *parts)): path for path, parts in paths.items()}
    below = {}
    for module, path in files.items():
        names = imported(path, late="kernels" not in path.parts)  # a chooser there loads a face when it is first called
        below[module] = {name if name in files else name.rpartition(".")[0] for name in names} - {"augury"}
    list(TopologicalSorter(below).static_order())  # raises CycleError, which names the circle


def test_every_tool_has_its_command_and_its_screen() -> None:
    """In its folder, or in one folder for each of its commands."""
    folders = {path.parent for path in TOOLS.glob("*/*.py")} - {TOOLS / "shared"}
    for folder in folders:
        commands = [path.parent for path in folder.rglob("command.py") if (path.parent / "screen.py").is_file()]
        assert folder in commands or len(commands) > 1, folder
    assert len(folders) > 15
    assert not list(TOOLS.rglob("*_command.py"))
    assert all(place.partition(":")[0].endswith(".command") for panel in LATER.values() for place, _ in panel.values())


def test_tools_import_each_other_only_where_it_is_written_down() -> None:
    found = set()
    for path in TOOLS.rglob("*.py"):
        tool = path.relative_to(TOOLS).parts[0]
        others = {name.split(".")[2] for name in imported(path) if name.startswith("augury.tools.")}
        found |= {(tool, other) for other in others - {tool, "shared"}}
    assert found == NEIGHBOURS


def test_light_rooms_import_without_torch() -> None:
    names = ["augury", "augury.cli", "augury.config.engine", "augury.methods.registry", "augury.observe.stats"]
    names += ["augury.serve.server"]
    for path in [path for tool in LIGHT for path in (TOOLS / tool).rglob("*.py")]:
        names.append(".".join(("augury", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__"))
    assert len(names) > 120
    code = f"import {', '.join(names)}, sys; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_class_name_means_one_thing() -> None:
    """In the rooms of the engine; a tool or a server that has the same word for something else confuses its readers."""
    places: dict[str, list[str]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(path.relative_to(SOURCE).as_posix())
    twice = {name: files for name, files in places.items() if len(files) > 1}
    core = {name: files for name, files in twice.items() if any(file.split("/")[0] in CORE for file in files)}
    wrong = {name: files for name, files in core.items() if any(file.split("/")[0] in CORE for file in files[1:])}
    tools = {name: files for name, files in core.items() if any(file.startswith("tools/") for file in files)}
    assert not wrong and set(tools) <= {"Drafter"}  # the GPU bench's drafters, named by what they are measured with


def test_files_and_functions_stay_small() -> None:
    """But for kernels, the options of a command, and these, which nobody has found a good way to split yet."""
    files, functions = set(), set()
    for path in SOURCE.rglob("*.py"):
        text, where = path.read_text(), path.relative_to(SOURCE).as_posix()
        if text.count("\n") > 300:
            files.add(where)
        if not where.startswith("kernels/") and path.name != "command.py":
            functions |= {(where, found.name) for found in ast.walk(ast.parse(text)) if lines_of(found) > 40}
    assert files == {"kernels/attend_triton.py"}
    assert functions == {
        ("index/ngram.py", "serve"),  # compiled by numba, as the next
        ("index/suffix_batch.py", "serve"),
        ("model/load.py", "load_target"),
        ("observe/prometheus.py", "__init__"),  # one line a metric
        ("tools/bench/gpu/run.py", "measure"),  # as many options as its command, as the next two
        ("tools/train/measure.py", "measure"),
        ("tools/monitor/settings.py", "settle"),
        ("tools/monitor/dashboard.py", "_queries"),  # one line a query
    }


def lines_of(node: ast.AST) -> int:
    """Lines of a function; 0 of anything else."""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return 0
    return (node.end_lineno or node.lineno) - node.lineno + 1


def test_ray_is_imported_where_the_name_of_the_file_says_so() -> None:
    """Who has not installed it must not need it."""
    pattern = re.compile(r"^\s*(import|from) ray\b", re.M)
    importing = {path for path in SOURCE.rglob("*.py") if pattern.search(path.read_text())}
    assert importing == set((SOURCE / "scale").glob("ray_*.py"))


def test_every_method_has_a_drafter_of_its_name() -> None:
    for name, method in METHODS.items():
        assert drafter_class(method).name == name == method.name  # type: ignore[attr-defined]


def test_the_longest_files_are_there() -> None:
    names = [path.stem for path in TESTS.rglob("test_*.py")]
    assert [name for name in LONGEST if name not in names] == []
    assert len(names) == len(set(names))  # pytest imports them by their names alone


def test_test_files_import_nothing_from_each_other() -> None:
    """What two of them share stands in a helper, so that a file can be split or renamed without breaking another."""
    wrong = []
    for path in TESTS.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            wrong += [f"{path.name} imports {name}" for name in names if name.split(".")[-1].startswith("test_")]
    assert not wrong, wrong
