"""Figures of the house: `python tests/helpers/house_figures.py [SOURCE]` counts rooms, arrows, circles, lines, names.

SOURCE is a directory with the package's files, by default this checkout's `src/augury`; another one for a comparison:
`git archive COMMIT src/augury | tar x -C DIRECTORY`.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from augury.methods.registry import ALIASES, METHODS

NAMES = {*METHODS, *ALIASES}
METHOD_ROOMS = ("methods", "drafters", "propose")  # the last is what drafters/ was called
HERE = Path(__file__).parents[2] / "src" / "augury"
LONG = 40  # lines of a function


def imports(tree: ast.Module) -> Iterator[str]:
    """Modules of the package that are imported when this one is: not within functions, not for types alone."""
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("augury"):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("augury"))


def literal_names(text: str) -> Iterator[tuple[int, object]]:
    """Every literal that is a method's name, those apart that say which method a written configuration has."""
    tree = ast.parse(text)
    configured = {
        id(value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Dict)
        for key, value in zip(node.keys, node.values, strict=True)
        if isinstance(key, ast.Constant) and key.value == "method"
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in configured and node.value in NAMES:
            yield node.lineno, node.value


def length(node: ast.AST) -> int:
    """Lines of a function; 0 of anything else."""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return 0
    return (node.end_lineno or node.lineno) - node.lineno + 1


class House:
    """A package's files, parsed."""

    def __init__(self, source: Path) -> None:
        self.texts = {path.relative_to(source).with_suffix(""): path.read_text() for path in source.rglob("*.py")}
        self.trees = {path: ast.parse(text) for path, text in self.texts.items()}

    def module(self, name: str) -> Path | None:
        """The file of an imported name: itself a module, or something in one."""
        parts = name.split(".")[1:]
        for path in (Path(*parts), Path(*parts, "__init__"), Path(*parts[:-1]), Path(*parts[:-1], "__init__")):
            if path in self.trees:
                return path
        return None

    def graph(self) -> dict[Path, set[Path]]:
        """Which file imports which."""
        return {
            path: {found for name in imports(tree) if (found := self.module(name)) not in (None, path)}
            for path, tree in self.trees.items()
        }

    def lines(self) -> Counter[str]:
        """By room; files outside any are counted as such."""
        found: Counter[str] = Counter()
        for path, text in self.texts.items():
            found[room(path)] += text.count("\n")
        return found

    def long_functions(self) -> Counter[str]:
        """By room; one that only declares a command's options counts as any other."""
        return Counter(
            room(path) for path, tree in self.trees.items() for node in ast.walk(tree) if length(node) > LONG
        )

    def method_names(self) -> int:
        """Literal names of methods outside the rooms of cards and drafters, words that mean something else included."""
        return sum(
            len(list(literal_names(text))) for path, text in self.texts.items() if room(path) not in METHOD_ROOMS
        )


def room(path: Path) -> str:
    """The room of a file."""
    return path.parts[0] if len(path.parts) > 1 else "(no room)"


def arrows(graph: dict[Path, set[Path]]) -> set[tuple[str, str]]:
    """Which room imports which."""
    pairs = {(room(path), room(other)) for path, others in graph.items() for other in others}
    return {(a, b) for a, b in pairs if a != b and "(no room)" not in (a, b)}


def circle(graph: dict[Path, set[Path]]) -> list[Path]:
    """A circle of files that import each other, or nothing."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def main() -> None:
    """Print them."""
    house = House(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
    graph, lines, long = house.graph(), house.lines(), house.long_functions()
    rooms = sorted(set(lines) - {"(no room)"})
    print(f"rooms {len(rooms)}, arrows between them {len(arrows(graph))}, a circle of files: {circle(graph) or 'none'}")
    print(f"literal names of methods elsewhere: {house.method_names()}")
    print(f"files {len(graph)}, lines {lines.total()}, functions over {LONG} lines {long.total()}")
    for name, count in lines.most_common():
        print(f"{count:7} lines, {long[name]:3} long functions  {name}")


if __name__ == "__main__":
    main()
