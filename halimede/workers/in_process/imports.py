"""The modules of one instance of a model, under a package name that nobody else has.

What a model writes as `import utils` is found in its own folders and imported as `PACKAGE.utils`: two files of the same
name, two versions and a reload never meet in `sys.modules`. The way there is the `__import__` of these modules' own
builtins, since a hook of `sys.meta_path` does not know who imports. Any thread.
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
"""An import that fails is shown as the model wrote it."""

PREFIX = "halimede_model_"
_NUMBERS = count(1)
"""As many as there are in the process, like `sys.modules` itself."""
_FILES = (*SOURCE_SUFFIXES, *EXTENSION_SUFFIXES)


class ModelPackage:
    """`folders` are where the model's own modules lie; `offered` are modules that it gets instead of what Python would
    import by these names."""

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
        """The model's file, from the first folder that has it. Raises whatever its import raises."""
        module: ModuleType = builtins.__import__(f"{self.name}.{stem}", None, None, ("TritonPythonModel",))
        return module

    def close(self) -> None:
        """Nothing of the package is known to Python any more."""
        for name in [name for name in list(sys.modules) if name.partition(".")[0] == self.name]:
            sys.modules.pop(name, None)
        self._forget_folders()

    def _forget_folders(self) -> None:
        """Python remembers what lay in them, and for how long it does is a matter of the file system's clock."""
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
        """`__import__` as the model's modules have it."""
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
        return self._import_own(name, head, fromlist)  # a package without a file of its own

    def _import_own(self, name: str, head: str, fromlist: Sequence[str]) -> Any:
        found = builtins.__import__(f"{self.name}.{name}", None, None, fromlist or ("__name__",))
        return found if fromlist else sys.modules[f"{self.name}.{head}"]

    def _is_own(self, head: str) -> bool:
        own = self._own.get(head)
        if own is None:
            own = self._own[head] = head not in sys.stdlib_module_names and self._has_file(head)
        return own

    def _has_file(self, head: str) -> bool:
        """A folder that is no package says nothing: models keep their data in folders of any name."""
        names = [f"{head}{suffix}" for suffix in _FILES] + [f"{head}/__init__{suffix}" for suffix in _FILES]
        return any((folder / name).is_file() for folder in self._folders for name in names)


def package_on_the_stack(depth: int) -> ModuleType | None:
    """The package of the model whose code has called, from so many frames up on."""
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
    """Gives the modules below a private package their builtins. The class itself is the finder."""

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
        """Keeps the bytecode only of a source that is some seconds old: Python tells it from another by its size and
        the second of its change, and a model may be loaded, changed and loaded again within one."""
        with suppress(OSError):  # the source has gone meanwhile
            if time() - Path(self.path).stat().st_mtime >= SETTLED_SECONDS:
                super().set_data(path, data, _mode=_mode)
