"""The rooms of the package as the imports show them: a picture for ARCHITECTURE.md, and figures.

`python -m tools.rooms` prints the picture, and draws it between the two marks in ARCHITECTURE.md with `--write`.
`python -m tools.rooms --figures` prints modules, lines, comments and lengths of functions. `--package FOLDER` measures
another checkout. Reads source files only.
"""

import argparse
import ast
import io
import sys
import tokenize
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from graphlib import TopologicalSorter
from pathlib import Path
from statistics import quantiles

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "ARCHITECTURE.md"
BEGIN, END = "<!-- rooms: drawn by tools/rooms.py -->\n", "<!-- rooms: end -->\n"

Graph = Mapping[str, frozenset[str]]

APART = ("workers.child", "backends.traits", "backends.registry", "backends.elsewhere", "backends.testing")
"""Parts of a package that are a room themselves."""
NOT_DRAWN = frozenset({"", "__main__", "compiled"})
"""The package's own module and the module that decides its form. They belong to no room."""


def modules_of(package: Path) -> dict[str, Path]:
    """The package's modules by dotted name below it. A package has the name of its folder."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def room_of(module: str) -> str:
    """A top-level module or package, or a package that is a room apart."""
    return next((room for room in APART if module == room or module.startswith(f"{room}.")), module.partition(".")[0])


def imports_of(path: Path, package: str) -> Iterator[str]:
    """The modules of the package that a file imports, as dotted names below it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (name.removeprefix(f"{package}.") for name in names if name.startswith(f"{package}."))


def graph_of(package: Path) -> dict[str, frozenset[str]]:
    """The rooms that each room imports."""
    modules = modules_of(package)
    below: dict[str, set[str]] = {room_of(name): set() for name in modules if name not in NOT_DRAWN}
    for name, path in modules.items():
        if name not in NOT_DRAWN:
            below[room_of(name)] |= {room_of(each) for each in imports_of(path, package.name)}
    return {room: frozenset(rooms & below.keys() - {room}) for room, rooms in below.items()}


def reduced(graph: Graph) -> dict[str, list[str]]:
    """The graph without the edges that a longer path implies. Raises CycleError if rooms import each other."""
    TopologicalSorter(graph).prepare()

    def reach(rooms: Collection[str]) -> frozenset[str]:
        return frozenset().union(*(graph[room] | reach(graph[room]) for room in rooms))

    return {room: sorted(below - reach(below)) for room, below in graph.items()}


def mermaid(graph: Graph) -> str:
    """A flow chart: an arrow goes from a room to a room that it imports; arrows that others imply are left out."""
    edges = reduced(graph)
    lines = [f"  {room} --> {' & '.join(below)}" for room, below in sorted(edges.items()) if below]
    return "\n".join(["```mermaid", "flowchart TD", *lines, "```", ""])


def with_picture(page: str, picture: str) -> str:
    """The page with this picture between its marks. Raises ValueError if a mark is missing."""
    before, found, rest = page.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not (found and ended):
        raise ValueError(f"{PAGE.name} must contain the lines {BEGIN.strip()!r} and {END.strip()!r}")
    return f"{before}{BEGIN}{picture}{END}{after}"


def comment_lines(text: str) -> int:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return sum(token.type == tokenize.COMMENT for token in tokens)


def code_lines(text: str) -> int:
    """Lines with code: neither blank, nor a comment alone, nor part of a docstring."""
    docs = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            docs |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate(text.splitlines(), 1)
    return sum(bool(line.strip()) and not line.lstrip().startswith("#") and at not in docs for at, line in lines)


def function_lengths(text: str) -> Iterator[int]:
    """Lines of each function, with its signature and docstring."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield (node.end_lineno or node.lineno) - node.lineno + 1


def figures(package: Path) -> Iterator[str]:
    """Lines of text for a person."""
    texts = {name: path.read_text() for name, path in modules_of(package).items()}
    rooms = Counter(room_of(name) for name in texts if name not in NOT_DRAWN)
    lines = {name: len(text.splitlines()) for name, text in texts.items()}
    code = sum(map(code_lines, texts.values()))
    comments = sum(map(comment_lines, texts.values()))
    lengths = sorted(length for text in texts.values() for length in function_lengths(text))
    at = quantiles(lengths, n=100)
    short = sum(0 < count < 50 for count in lines.values())
    yield f"modules: {len(texts)}, of them shorter than 50 lines: {short}"
    yield "modules per room: " + ", ".join(f"{room} {count}" for room, count in rooms.most_common())
    yield f"lines: {sum(lines.values())}, of them code: {code}"
    yield f"comments per 100 lines of code: {100 * comments / code:.1f}"
    spread = f"lines at 50 %: {at[49]:.0f}, 90 %: {at[89]:.0f}, 99 %: {at[98]:.0f}, most: {lengths[-1]}"
    yield f"functions: {len(lengths)}, {spread}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--package", type=Path, default=ROOT / "halimede", metavar="FOLDER")
    parser.add_argument("--figures", action="store_true", help="print figures instead of the picture")
    parser.add_argument("--write", action="store_true", help="draw the picture in ARCHITECTURE.md")
    options = parser.parse_args()
    if options.figures:
        print("\n".join(figures(options.package)))
        return 0
    picture = mermaid(graph_of(options.package))
    if options.write:
        PAGE.write_text(with_picture(PAGE.read_text(), picture))
    else:
        print(picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
