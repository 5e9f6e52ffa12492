"""Starts the program of the child home: `python main.py SOCKET[,SEGMENTS] LABEL [LD_LIBRARY_PATH]`. The label is for
`ps`.

The interpreter may be one of the model's own environment. So the package `halimede` is imported by path, from the
folder of this file: its version is always the server's, and no other package of the server is found that way. The
environment must have what `halimede` and the backend import (numpy, protobuf, the runtime).
"""

import importlib.util
import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def import_own_package() -> None:
    """Imports `halimede` from where this file lies."""
    folder = HERE.parent
    spec = importlib.util.spec_from_file_location(
        "halimede", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"no package in {folder}")
    package = importlib.util.module_from_spec(spec)
    sys.modules["halimede"] = package
    spec.loader.exec_module(package)


def main() -> int:
    if str(HERE) in sys.path:  # else a module of this folder could shadow one of Python's
        sys.path.remove(str(HERE))
    descriptors = list(map(int, sys.argv[1].split(",")))
    libraries = sys.argv[3] if len(sys.argv) > 3 else None
    if libraries is not None:
        # The loader has read it at the start. Programs that the backend starts need the old value.
        os.environ["LD_LIBRARY_PATH"] = libraries
        if not libraries:
            del os.environ["LD_LIBRARY_PATH"]
    import_own_package()
    from halimede.hosted.program import run

    return run(*descriptors)


if __name__ == "__main__":
    sys.exit(main())
