"""The program of a worker process: `python main.py SOCKET[,SEGMENTS] LABEL [LD_LIBRARY_PATH]`, with descriptors that it
inherits; the label is for `ps`. It imports its own folder as the package `halimede_worker`.

It does so by path and under a private name: the interpreter of a model may have no `halimede` package, or another
version, and no file of this folder may shadow a module of the model.
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
    """Imports numpy as well. The threads of its OpenBLAS, one per further core, then spin for 0.4 ms (2^20 ticks)
    before they sleep, not for 25 ms. A value that the operator has set stays."""
    set_here = _SETTING not in os.environ
    if set_here:
        os.environ[_SETTING] = "20"
    gc.disable()  # what is imported stays
    try:
        return importlib.import_module("halimede_worker.worker")
    finally:
        gc.enable()
        if set_here:  # OpenBLAS has read it; programs that a model starts must not inherit it
            del os.environ[_SETTING]


def main() -> int:
    folder = os.path.dirname(os.path.abspath(__file__))
    if folder in sys.path:
        sys.path.remove(folder)
    descriptors = list(map(int, sys.argv[1].split(",")))
    if len(sys.argv) > 3:
        _restore_libraries(sys.argv[3])
    sys.argv = [""]
    del sys.modules["__main__"].__file__  # processes that a model spawns would run this file
    faulthandler.enable()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # None if the server has closed its own
            stream.reconfigure(line_buffering=True)
    try:
        _import_package(folder)
        worker = _import_worker()
    except ImportError as error:
        return _refuse(descriptors[0], error)
    sys.path.insert(0, "")
    return int(worker.run(*descriptors))


def _restore_libraries(path: str) -> None:
    """The loader has read the variable at the start of this process. Programs that the model starts need the old
    one."""
    os.environ["LD_LIBRARY_PATH"] = path
    if not path:
        del os.environ["LD_LIBRARY_PATH"]


def _refuse(descriptor: int, error: ImportError) -> int:
    """Sends REFUSED. The frame is built by hand, since the module `frames` needs numpy too."""
    reason = " ".join(str(error).split())
    text = (
        f"Python models need numpy, which cannot be imported by {sys.executable} (Python {sys.version.split()[0]}): "
        f"{reason}; it is installed there by: {sys.executable} -m pip install numpy"
    ).encode("utf-8", "replace")
    header = struct.Struct("<4sHHIIQQqqQ")
    with socket.socket(fileno=descriptor) as server:
        server.sendall(header.pack(b"HLM2", 3, 0, 0, len(text), header.size + len(text), 0, 0, 0, 0) + text)
        while server.recv(1 << 16):  # until the server hangs up: unread bytes would reset the connection
            pass
    return 1


if __name__ == "__main__":
    sys.exit(main())
