"""The house rules that a machine can check: imports go down only, foreign libraries stay in their rooms, modules stay
small, and no module keeps state of its own.
"""

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType

import pytest

import halimede
from tools import rooms

PACKAGE = Path(halimede.__file__).parent
TESTS = Path(__file__).parent

SOURCE_LINES = 700
TEST_LINES = 800

ROOMS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        room: frozenset(may.split()) - {room}
        for room, may in {
            "errors": "",
            "tensors": "errors",
            "devices": "tensors errors",
            "requests": "tensors errors",
            "traces": "requests tensors errors",
            "tracing": "traces requests tensors errors platform",
            "custom_metrics": "errors",
            "http_client": "errors",
            "protocol": "",
            "identities": "errors",
            "options": "errors",
            "platform": "errors",
            "backends.traits": "",
            "backends.elsewhere": "backends.traits",
            "backends.registry": "backends.traits backends.elsewhere",
            "config": "backends.traits backends.registry protocol tensors errors",
            "scheduling": "devices requests tensors errors",
            "workers": "workers.child compiled custom_metrics requests tensors errors platform",
            "workers.child": "",
            "backends": "backends.traits backends.registry devices config workers workers.child requests tensors "
            "errors platform",
            "backends.testing": "backends backends.traits devices models scheduling platform requests tensors errors",
            "hosted": "backends config devices models scheduling workers workers.child requests tensors errors",
            "agents": "errors",
            "storage": "errors platform",
            "models": "agents scheduling backends backends.traits backends.registry config requests tensors errors "
            "platform",
            "cache": "requests tensors errors platform",
            "engine_port": "requests tensors errors",
            "measurement": "engine_port cache models scheduling config options custom_metrics platform requests "
            "tensors errors",
            "loading": "engine_port storage cache models scheduling backends config options platform requests tensors "
            "errors",
            "engine": "traces tracing engine_port measurement loading cache models scheduling backends config options "
            "backends.registry custom_metrics requests tensors errors platform version",
            "wire": "protocol engine_port requests tensors errors",
            "transport": "tensors errors platform",
            "front": "identities traces engine_port wire transport requests tensors errors",
            "checking": "backends.traits backends.registry engine models agents backends config options tensors errors",
            "devtools": "backends.traits backends.registry http_client checking engine engine_port wire models config "
            "backends options requests tensors errors",
            "console": "traces transport http_client top requests tensors errors",
            "serving": "identities console version traces front engine_port transport options platform errors",
            "binding": "backends backends.registry serving engine loading models config options tensors errors "
            "platform",
            "ray": "binding serving traces engine engine_port options backends.registry requests tensors errors "
            "platform",
            "perf": "http_client options platform protocol tensors transport errors version",
            "analyze": "perf checking config http_client options platform protocol errors version",
            "cli": "identities backends.registry devtools checking perf analyze top console serving engine engine_port "
            "models config options requests tensors errors platform transport version http_client",
            "top": "http_client errors",
            "main": "cli",
            "version": "compiled",
            "compiled": "",
        }.items()
    }
)
"""The architecture: what each room may import besides itself. A room is a package or module of `halimede`, or a part of
one that stands by itself."""

FOREIGN: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        library: frozenset(modules.split())
        for library, modules in {
            "rich": "top.screen cli.top",
            "matplotlib": "perf.plot analyze.plots",
            "optuna": "analyze.searches.optuna_search",
            "jinja2": "analyze.pages",
            "fpdf": "analyze.pdf",
            "shtab": "cli.completion",
            "grandalf": "devtools.graph_svg",
            "hpack": "transport.http2.hpack_library",
            "ray": "ray",
            "redis": "cache.redis cache.redis_tls",
            "obstore": "storage.stores",
            "opentelemetry": "tracing.spans",
            "httptools": "transport.http1.reader",
            "uvloop": "platform.loops",
            "onnx": "backends.fil.graph",
            "onnxruntime": "backends.onnx",
            "openvino": "backends.openvino",
            "nvidia": "backends.dali",
            "skops": "backends.sklearn",
            "yaml": "backends.mlflow analyze.settings",
            "pandas": "backends.sklearn",
            "treelite": "backends.fil",
            "torch": "backends.pytorch backends.python.platforms backends.onnx.exporters backends.openvino.converters",
            "safetensors": "backends.pytorch.module",
            "tensorflow": "backends.tensorflow backends.tflite.converters",
            "ai_edge_litert": "backends.tflite",
            "tensorrt": "backends.tensorrt.backend",
            "google": "config wire protocol checking.text analyze.changes perf.dynamic_grpc",
            "grpc_tools": "perf.dynamic_grpc",
            "orjson": "wire config backends",
            "rapidjson": "wire config",
            "numpy": "tensors devices tracing scheduling backends wire transport workers engine.classification "
            "devtools hosted binding.tensors perf",
        }.items()
    }
)
"""Which rooms or modules may import a library."""


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def dotted(path: Path) -> str:
    """`workers/child/__init__.py` -> `workers.child`; the package itself is `version`, `__main__` is `main`."""
    name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix("__init__").rstrip(".")
    return {"": "version", "__main__": "main"}.get(name, name)


def room_of(module: str) -> str:
    """The longest name in the table that the module is, or lies in."""
    parts = module.split(".")
    names = [".".join(parts[:n]) for n in range(len(parts), 0, -1)]
    found = next((name for name in names if name in ROOMS), None)
    assert found is not None, f"{module} is in no room of the table"
    return found


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def imports_of(path: Path) -> Iterator[str]:
    """Everything that a module imports, in functions too, as full dotted names; relative ones made absolute."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = ("halimede", *path.relative_to(PACKAGE).parts)
                base = ".".join([*parents[: len(parents) - node.level], *([base] if base else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


@cache
def existing() -> frozenset[str]:
    return frozenset(dotted(path) for path in modules())


def own_module(imported: str) -> str:
    """The module of ours that an import names: `halimede.errors.Error` -> `errors`."""
    name = imported.removeprefix("halimede").lstrip(".")
    while name and name not in existing():
        name = name.rpartition(".")[0]
    return name or "version"


def is_ours(imported: str) -> bool:
    return imported.split(".")[0] == "halimede"


@pytest.mark.parametrize("path", modules(), ids=dotted)
def test_imports_go_down_only(path: Path) -> None:
    room = room_of(dotted(path))
    for imported in filter(is_ours, imports_of(path)):
        below = room_of(own_module(imported))
        assert below == room or below in ROOMS[room], f"{dotted(path)} ({room}) must not import {imported} ({below})"


def test_rooms_have_no_circle() -> None:
    left = dict(ROOMS)
    while left:
        ground = [room for room, below in left.items() if not below & left.keys()]
        assert ground, f"these import each other: {sorted(left)}"
        for room in ground:
            del left[room]


def test_engine_is_reached_through_its_port() -> None:
    users = {room for room, below in ROOMS.items() if "engine" in below}
    assert users == {"binding", "cli", "checking", "devtools", "ray"}


@pytest.mark.parametrize("path", modules(), ids=dotted)
def test_foreign_libraries_stay_in_their_rooms(path: Path) -> None:
    name = dotted(path)
    for imported in imports_of(path):
        library = next((known for known in FOREIGN if imported == known or imported.startswith(known + ".")), None)
        if library is not None:
            allowed = FOREIGN[library]
            assert any(name == where or name.startswith(where + ".") for where in allowed), f"{name} imports {imported}"


@pytest.mark.parametrize("path", [p for p in modules() if dotted(p).startswith("workers.child")], ids=dotted)
def test_child_of_a_worker_needs_the_standard_library_and_numpy_only(path: Path) -> None:
    import sys

    for imported in imports_of(path):
        top = imported.split(".")[0]
        assert top in sys.stdlib_module_names or top == "numpy" or imported.startswith("halimede.workers.child")


BROAD = ("Exception", "BaseException")
ERROR_LOGGERS = frozenset({"internal_error"})
"""Functions of other modules that log the exception that is being handled."""


def logging_calls(node: ast.AST) -> bool:
    return any(isinstance(each, ast.Attribute) and ast.unparse(each.value) == "log" for each in ast.walk(node))


@pytest.mark.parametrize("path", modules(), ids=dotted)
def test_who_catches_everything_passes_it_on_logs_it_or_says_why(path: Path) -> None:
    """A bare `except Exception: pass` hides mistakes. `raise` and the exception's use count as passing on."""
    tree, lines = tree_of(path), path.read_text().splitlines()
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    loggers = {function.name for function in functions if logging_calls(function)} | ERROR_LOGGERS
    for node in ast.walk(tree):
        if not isinstance(node, ast.ExceptHandler) or (node.type and ast.unparse(node.type) not in BROAD):
            continue
        inside = [each for statement in node.body for each in ast.walk(statement)]
        passes_on = any(isinstance(each, ast.Raise) or getattr(each, "id", "") == (node.name or "-") for each in inside)
        calls = {ast.unparse(each.func).rpartition(".")[2] for each in inside if isinstance(each, ast.Call)}
        logs = any(map(logging_calls, node.body)) or bool(calls & loggers)
        says_why = any("#" in line for line in lines[node.lineno - 1 : node.end_lineno])
        assert passes_on or logs or says_why, f"{dotted(path)}:{node.lineno} swallows what it catches"


MUTABLE = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)


@pytest.mark.parametrize("path", modules(), ids=dotted)
def test_module_keeps_no_state(path: Path) -> None:
    """No `global`, and nothing mutable at module level under a name that is not a constant's."""
    tree = tree_of(path)
    for node in ast.walk(tree):
        assert not isinstance(node, ast.Global), f"{dotted(path)}:{getattr(node, 'lineno', 0)} assigns a global"
    for statement in tree.body:
        if isinstance(statement, ast.Assign | ast.AnnAssign) and isinstance(statement.value, MUTABLE):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            for target in targets:
                assert isinstance(target, ast.Name)
                name = target.id
                assert name == name.upper() or name.startswith("__"), f"{dotted(path)}: {name} is mutable"


@pytest.mark.parametrize("path", modules(), ids=dotted)
def test_module_says_what_it_is(path: Path) -> None:
    tree = tree_of(path)
    assert not tree.body or ast.get_docstring(tree), f"{dotted(path)} has no docstring"


@pytest.mark.parametrize(("folder", "limit"), [(PACKAGE, SOURCE_LINES), (TESTS, TEST_LINES)], ids=["package", "tests"])
def test_no_module_is_longer_than_it_should_be(folder: Path, limit: int) -> None:
    lengths = {path.relative_to(folder): len(path.read_text().splitlines()) for path in folder.rglob("*.py")}
    assert not {str(path): lines for path, lines in lengths.items() if lines > limit}


def test_picture_of_the_rooms_is_drawn_from_the_imports() -> None:
    page = rooms.PAGE.read_text()
    assert rooms.with_picture(page, rooms.mermaid(rooms.graph_of(PACKAGE))) == page, (
        "run `python -m tools.rooms --write`"
    )


def test_every_room_is_in_the_map() -> None:
    page = rooms.PAGE.read_text()
    assert len(page.splitlines()) <= 200
    names = {room.partition(".")[0] for room in rooms.graph_of(PACKAGE)}
    assert not {name for name in names if f"| `{name}` |" not in page}
