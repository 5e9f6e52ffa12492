"""The modules that a model's code imports, found without running it.

Follows imports into the files that lie beside the code. Knows no installed module. Pure but for reading files; any
thread.
"""

import ast
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

MAX_FILES = 200
"""Files of a model that are read. More than that is a library."""

_AT_LOAD = frozenset({"initialize", "__init__"})
"""The methods that run while the model loads."""
_CLASS = "TritonPythonModel"


_OF_SYS = frozenset({"path", "modules", "meta_path"})
"""What of `sys` decides where modules are found."""


class When(IntEnum):
    """When an import runs. An import of a file has the larger value of its own and of the import of the file."""

    LOAD = 0
    """Certainly, while the model loads."""
    CALL = 1
    """When a function of the model's file is called."""
    MAYBE = 2
    """Within `try` or `if`, or in a function of another file."""


@dataclass(frozen=True, slots=True)
class Import:
    """An import of a module that does not lie beside the model's code. The name of a relative import begins with its
    dots. `where` is the function that it is in, or empty."""

    module: str
    file: Path
    line: int
    when: When
    where: str = ""


@dataclass(frozen=True, slots=True)
class _Found:
    module: str
    level: int
    names: tuple[str, ...]
    line: int
    when: When
    where: str


def imports_of(file: Path, folders: Sequence[Path]) -> list[Import]:
    """The first import of each module, the most certain one. `folders` are those of the model on `sys.path`.

    A file that is not Python has no imports.
    """
    best: dict[str, Import] = {}
    waiting = [(file, When.LOAD)]
    seen: dict[Path, When] = {}
    for path, when in waiting:  # the list grows
        if seen.get(path, When.MAYBE + 1) <= when or len(seen) >= MAX_FILES:
            continue
        seen[path] = when
        for each in _imports_in(path, path == file):
            joined = max(each.when, when)
            local = list(_local_files(each, path, folders))
            waiting += [(other, joined) for other in local]
            name = "." * each.level + each.module
            known = best.get(name)
            # `from . import name` may mean a name in the package itself.
            if not local and each.module and (known is None or known.when > joined):
                best[name] = Import(name, path, each.line, joined, each.where)
    return list(best.values())


def changes_path(file: Path) -> bool:
    """Whether the code mentions `sys.path` or `sys.modules`: then modules may lie where nobody knows."""
    tree = _tree_of(file)
    return tree is not None and any(
        isinstance(node, ast.Attribute) and node.attr in _OF_SYS and getattr(node.value, "id", "") == "sys"
        for node in ast.walk(tree)
    )


def _imports_in(file: Path, is_model: bool) -> Iterator[_Found]:
    tree = _tree_of(file)
    if tree is not None:
        yield from _Walk(is_model).of(tree.body, When.LOAD, "")


def _tree_of(file: Path) -> ast.Module | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd escapes in texts
            return ast.parse(file.read_bytes(), str(file))
    except (SyntaxError, ValueError, OSError, RecursionError):  # that is another fault
        return None


class _Walk:
    """Goes through statements in their order. `is_model` is False in files beside the model's own."""

    def __init__(self, is_model: bool) -> None:
        self._is_model = is_model

    def of(self, body: Sequence[ast.stmt], when: When, where: str, in_class: str = "") -> Iterator[_Found]:
        for each in body:
            yield from self._statement(each, when, where, in_class)

    def _statement(self, each: ast.stmt, when: When, where: str, in_class: str) -> Iterator[_Found]:
        match each:
            case ast.Import():
                for alias in each.names:
                    yield _Found(alias.name, 0, (), each.lineno, when, where)
            case ast.ImportFrom():
                names = tuple(alias.name for alias in each.names)
                yield _Found(each.module or "", each.level, names, each.lineno, when, where)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield from self.of(each.body, self._when_called(each.name, when, where, in_class), where or each.name)
            case ast.ClassDef():
                yield from self.of(each.body, when, where, each.name)
            case ast.With() | ast.AsyncWith():
                # As `with suppress(ImportError)`.
                guarded = any("suppress" in ast.unparse(item.context_expr) for item in each.items)
                yield from self.of(each.body, When.MAYBE if guarded else when, where, in_class)
            case ast.Try() | ast.TryStar():
                yield from self._try(each, when, where, in_class)
            case ast.If():
                # Neither is run by the server.
                if not {"TYPE_CHECKING", "__main__"}.intersection(_words(each.test)):
                    yield from self.of(each.body, When.MAYBE, where, in_class)
                yield from self.of(each.orelse, When.MAYBE, where, in_class)
            case ast.For() | ast.AsyncFor() | ast.While():
                yield from self.of([*each.body, *each.orelse], When.MAYBE, where, in_class)
            case ast.Match():
                for case in each.cases:
                    yield from self.of(case.body, When.MAYBE, where, in_class)

    def _try(self, each: ast.Try | ast.TryStar, when: When, where: str, in_class: str) -> Iterator[_Found]:
        # Handlers run after a failure; what has no handler fails all the same.
        guarded = When.MAYBE if each.handlers else when
        yield from self.of([*each.body, *each.orelse], guarded, where, in_class)
        for handler in each.handlers:
            yield from self.of(handler.body, When.MAYBE, where, in_class)
        yield from self.of(each.finalbody, when, where, in_class)

    def _when_called(self, name: str, when: When, where: str, in_class: str) -> When:
        if not self._is_model or where:
            return When.MAYBE
        if in_class == _CLASS and name in _AT_LOAD:
            return when
        return max(when, When.CALL)


def _words(test: ast.expr) -> set[str]:
    """The names and the texts in a condition."""
    found = {getattr(node, "id", "") or getattr(node, "attr", "") for node in ast.walk(test)}
    return found | {str(node.value) for node in ast.walk(test) if isinstance(node, ast.Constant)}


def _local_files(found: _Found, file: Path, folders: Sequence[Path]) -> Iterator[Path]:
    """The files beside the model's code that an import runs."""
    places = [file.parents[found.level - 1]] if found.level and found.level <= len(file.parents) else folders
    parts = found.module.split(".") if found.module else []
    for place in places:
        if not parts:  # from . import name
            yield from _modules_in(place, found.names)
        elif _lies_in(place, parts[0]):
            for depth in range(1, len(parts) + 1):
                yield from _modules_in(place.joinpath(*parts[: depth - 1]), parts[depth - 1 : depth])
            yield from _modules_in(place.joinpath(*parts), found.names)
            return


def _lies_in(folder: Path, name: str) -> bool:
    # A folder of the same name may hold weights.
    return (folder / f"{name}.py").is_file() or any(folder.glob(f"{name}/*.py")) or any(folder.glob(f"{name}.*.so"))


def _modules_in(folder: Path, names: Sequence[str]) -> Iterator[Path]:
    for name in names:
        for path in (folder / f"{name}.py", folder / name / "__init__.py"):
            if path.is_file():
                yield path
