"""Where a worker process starts: `python main.py DESCRIPTOR [LD_LIBRARY_PATH]`. Imports its own folder as the package
`halimede_worker`.

By path and under a private name, because the server's package may be missing (or of another version) in the
interpreter that runs the model, and because no file here may shadow one of the model's own.
"""

import faulthandler
import gc
import importlib.util
import io
import os
import socket
import struct
import sys
from types import ModuleType


def _import_package(folder: str) -> None:
    spec = importlib.util.spec_from_file_location(
        "halimede_worker", os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    if spec is None or spec.loader is None:
        raise ImportError("no package in " + folder)
    package = importlib.util.module_from_spec(spec)
    sys.modules["halimede_worker"] = package
    spec.loader.exec_module(package)


_SETTING = "OPENBLAS_THREAD_TIMEOUT"


def _import_worker() -> ModuleType:
    """And numpy, whose threads look out for work for 0.4 ms (2^20 ticks) before they sleep, not for 25 ms: one for each
    further core, at the start and after everything that they compute. What the operator has set stays."""
    set_here = _SETTING not in os.environ
    if set_here:
        os.environ[_SETTING] = "20"
    gc.disable()  # what is imported stays
    try:
        return importlib.import_module("halimede_worker.worker")
    finally:
        gc.enable()
        if set_here:  # read by now, and nothing for what a model starts
            del os.environ[_SETTING]


def main() -> int:
    folder = os.path.dirname(os.path.abspath(__file__))
    if folder in sys.path:
        sys.path.remove(folder)
    descriptor = int(sys.argv[1])
    if len(sys.argv) > 2:
        _restore_libraries(sys.argv[2])
    sys.argv = [""]
    faulthandler.enable()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # None where the server has closed its own
            stream.reconfigure(line_buffering=True)
    try:
        _import_package(folder)
        worker = _import_worker()
    except ImportError as error:
        return _refuse(descriptor, error)
    sys.path.insert(0, "")
    return int(worker.run(descriptor))


def _restore_libraries(path: str) -> None:
    """The system has read by now where the libraries of this interpreter are. What a model starts has its own."""
    os.environ["LD_LIBRARY_PATH"] = path
    if not path:
        del os.environ["LD_LIBRARY_PATH"]


def _refuse(descriptor: int, error: ImportError) -> int:
    """Tells the server by the frame REFUSED, which is made by hand: `frames` needs what is missing."""
    reason = " ".join(str(error).split())
    text = (
        f"Python models need numpy, which cannot be imported by {sys.executable} (Python {sys.version.split()[0]}): "
        f"{reason}; it is installed there by: {sys.executable} -m pip install numpy"
    ).encode("utf-8", "replace")
    header = struct.Struct("<4sHHIIQQqq")
    with socket.socket(fileno=descriptor) as server:
        server.sendall(header.pack(b"HLM1", 3, 0, 0, len(text), header.size + len(text), 0, 0, 0) + text)
        while server.recv(1 << 16):  # until the server hangs up: what is not read would be an error on its side
            pass
    return 1


if __name__ == "__main__":
    sys.exit(main())
