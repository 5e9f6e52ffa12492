"""`triton_python_backend_utils` in a process that a model has spawned: the classes and functions that need no server.

Calls of other models raise TritonModelException, and `Logger` writes to standard error.
"""

import importlib.util
import os
import sys

_NAME = "halimede_worker"


def _import_interface() -> None:
    """Replaces this module. The package has a private name, as in the worker (`main.py`)."""
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    spec = importlib.util.spec_from_file_location(
        _NAME, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    if spec is None or spec.loader is None:
        raise ImportError("no package in " + folder)
    package = importlib.util.module_from_spec(spec)
    sys.modules[_NAME] = package
    spec.loader.exec_module(package)
    interface = importlib.import_module(_NAME + ".triton_python_backend_utils")
    interface.name_natively()
    sys.modules[__name__] = sys.modules[interface.NATIVE] = interface


_import_interface()
