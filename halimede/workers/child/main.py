"""Where a worker process starts: `python main.py DESCRIPTOR`. Imports its own folder as the package `halimede_worker`.

By path and under a private name, because the server's package may be missing (or of another version) in the
interpreter that runs the model, and because no file here may shadow one of the model's own.
"""

import faulthandler
import importlib.util
import io
import os
import sys


def _import_package(folder: str) -> None:
    spec = importlib.util.spec_from_file_location(
        "halimede_worker", os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    if spec is None or spec.loader is None:
        raise ImportError("no package in " + folder)
    package = importlib.util.module_from_spec(spec)
    sys.modules["halimede_worker"] = package
    spec.loader.exec_module(package)


def main() -> int:
    folder = os.path.dirname(os.path.abspath(__file__))
    if folder in sys.path:
        sys.path.remove(folder)
    descriptor = int(sys.argv[1])
    sys.argv = [""]
    faulthandler.enable()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # None where the server has closed its own
            stream.reconfigure(line_buffering=True)
    _import_package(folder)
    sys.path.insert(0, "")
    return int(importlib.import_module("halimede_worker.worker").run(descriptor))


if __name__ == "__main__":
    sys.exit(main())
