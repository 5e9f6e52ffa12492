"""The modules of one instance of a model, under a package name of its own.

`import utils` in a model finds the file in the model's folders and imports it as `PACKAGE.utils`. So two files of one
name, two versions, and a reload do not collide in `sys.modules`. The modules get builtins with an `__import__` of their
own, since a hook of `sys.meta_path` does not know which module imports. Any thread.
"""

import builtins
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ModuleSpec,
    PathFinder,
    SourceFileLoader,
)
from importlib.util import module_from_spec
from itertools import count
from pathlib import Path
from time import time
from types import FrameType, ModuleType
from typing import Any

from halimede.workers.child.model import SETTLED_SECONDS

__tracebackhide__ = True
"""Frames of this module are left out of the exceptions of models."""

PREFIX = "halimede_model_"
_NUMBERS = count(1)
"""One counter for the whole process, like `sys.modules`."""
_FILES = (*SOURCE_SUFFIXES, *EXTENSION_SUFFIXES)


class ModelPackage:
    """`folders` have the model's own modules. `offered` are modules that it gets instead of what Python would import by
    these names."""

    def __init__(self, folders: Sequence[Path], offered: Mapping[str, ModuleType]) -> None:
        self.name = f"{PREFIX}{next(_NUMBERS)}"
        self._folders = folders
        self._offered = offered
        self._own: dict[str, bool] = {}
        _find_privately()
        self._forget_folders()
        spec = ModuleSpec(self.name, None, is_package=True)
        spec.submodule_search_locations = [str(folder) for folder in folders]
        root = module_from_spec(spec)
        vars(root).update(offered, __builtins__={**vars(builtins), "__import__": self._import})
        sys.modules[self.name] = root

    def import_file(self, stem: str) -> ModuleType:
        """Imports the model's file, from the first folder that has it. Raises whatever its import raises."""
        module: ModuleType = builtins.__import__(f"{self.name}.{stem}", None, None, ("TritonPythonModel",))
        return module

    def close(self) -> None:
        """Removes the package from `sys.modules` and Python's caches."""
        for name in [name for name in list(sys.modules) if name.partition(".")[0] == self.name]:
            sys.modules.pop(name, None)
        self._forget_folders()

    def _forget_folders(self) -> None:
        """Removes the folders from Python's cache of directory listings, which may be stale for as long as the file
        system's clock is coarse."""
        for folder in self._folders:
            sys.path_importer_cache.pop(str(folder), None)

    def _import(
        self,
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] = (),
        level: int = 0,
    ) -> Any:
        """The `__import__` of the model's modules."""
        if level:
            return builtins.__import__(name, globals, locals, fromlist, level)
        if name in self._offered:
            return self._offered[name]
        head = name.partition(".")[0]
        if self._is_own(head):
            return self._import_own(name, head, fromlist)
        try:
            return builtins.__import__(name, globals, locals, fromlist)
        except ModuleNotFoundError as error:
            if error.name != head or not any((folder / head).is_dir() for folder in self._folders):
                raise
        return self._import_own(name, head, fromlist)  # a namespace package: a folder without __init__.py

    def _import_own(self, name: str, head: str, fromlist: Sequence[str]) -> Any:
        found = builtins.__import__(f"{self.name}.{name}", None, None, fromlist or ("__name__",))
        return found if fromlist else sys.modules[f"{self.name}.{head}"]

    def _is_own(self, head: str) -> bool:
        own = self._own.get(head)
        if own is None:
            own = self._own[head] = head not in sys.stdlib_module_names and self._has_file(head)
        return own

    def _has_file(self, head: str) -> bool:
        """Whether a folder of the model has a module of this name. A folder without __init__.py does not count: models
        keep data in folders of any name."""
        names = [f"{head}{suffix}" for suffix in _FILES] + [f"{head}/__init__{suffix}" for suffix in _FILES]
        return any((folder / name).is_file() for folder in self._folders for name in names)


def package_on_the_stack(depth: int) -> ModuleType | None:
    """The package of the model whose code is on the stack, searched from `depth` frames up."""
    frame: FrameType | None = sys._getframe(depth)
    while frame is not None:
        name = frame.f_globals.get("__name__")
        if isinstance(name, str) and name.startswith(PREFIX):
            return sys.modules.get(name.partition(".")[0])
        frame = frame.f_back
    return None


def _find_privately() -> None:
    if _Finder not in sys.meta_path:
        sys.meta_path.insert(0, _Finder)


class _Finder:
    """Gives the modules of private packages their builtins. The class itself is the finder."""

    @classmethod
    def find_spec(cls, fullname: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        if not fullname.startswith(PREFIX):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader = _Loader(fullname, spec.loader.path)
        return spec


class _Loader(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        root = sys.modules[module.__name__.partition(".")[0]]
        vars(module)["__builtins__"] = vars(root)["__builtins__"]
        super().exec_module(module)

    def set_data(self, path: str, data: Any, *, _mode: int = 0o666) -> None:
        """Keeps bytecode only of a source that is some seconds old. Python recognizes a source by its size and the
        second of its change; a model may be loaded, changed and loaded again within one second."""
        with suppress(OSError):  # the source has gone meanwhile
            if time() - Path(self.path).stat().st_mtime >= SETTLED_SECONDS:
                super().set_data(path, data, _mode=_mode)
