"""Computes the output of a forest on the CPU. Any thread, several at once.

ONNX Runtime is the faster one for any number of rows and trees (docs/decisions/forests.md). GTIL, treelite's own
predictor, knows what ONNX does not: categories, and rare postprocessors.
"""

import ctypes
import json
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from treelite.libpath import find_lib_path

from halimede.backends.fil.forest import Forest
from halimede.backends.fil.graph import INPUT, OUTPUT
from halimede.backends.onnx.errors import translated
from halimede.backends.onnx.session import SessionPlan, open_session
from halimede.errors import Internal

Array = npt.NDArray[Any]


class Predictor(Protocol):
    """What computes the output of a forest."""

    def predict(self, rows: Array) -> Array:
        """The output [rows, classes] for rows [rows, features] of float32. Raises Internal."""
        ...


def _library() -> Any:
    """Treelite's library, with the signatures of the functions that are called here. It is loaded already: these are
    function objects of our own."""
    library = ctypes.CDLL(find_lib_path()[0])
    pointer, text = ctypes.c_void_p, ctypes.c_char_p
    library.TreeliteGetLastError.restype = text
    library.TreeliteGTILParseConfig.argtypes = [text, ctypes.POINTER(pointer)]
    library.TreeliteGTILDeleteConfig.argtypes = [pointer]
    library.TreeliteGTILPredict.argtypes = [pointer, pointer, text, ctypes.c_uint64, pointer, pointer]
    return library


class GraphForest:
    """A forest as a graph in a session of ONNX Runtime. `threads` is the number of threads for a batch."""

    def __init__(self, graph: bytes, threads: int) -> None:
        session = open_session(graph, SessionPlan(intra_threads=threads))
        # `session.run` checks in Python what is certain here (`backends.onnx.backend.run_of`).
        self._run = getattr(session, "_sess", session).run

    def predict(self, rows: Array) -> Array:
        try:
            [values] = self._run([OUTPUT], {INPUT: np.ascontiguousarray(rows)}, None)
        except Exception as error:
            raise translated(error) from error
        result: Array = values
        return result


class Gtil:
    """Treelite's predictor. `threads` is the number of threads for a batch.

    It is called by its C interface, with what does not depend on the rows prepared once: treelite's own `gtil.predict`
    takes five times as long for a row, because it does that in Python each time.
    """

    def __init__(self, forest: Forest, threads: int) -> None:
        self._forest = forest  # it owns the model, which must live as long as its handle is used
        self._dtype = np.dtype(forest.dtype)
        self._type = self._dtype.name.encode()
        self._library = _library()
        self._config = ctypes.c_void_p()
        self._handle = forest.model.handle
        self._configure(threads)
        try:
            self.predict(np.zeros((1, forest.features), np.float32))
        except Internal:  # it refuses more threads than OMP_NUM_THREADS, and takes all that it may without a number
            self._configure(-1)

    def _configure(self, threads: int) -> None:
        self._release()
        config = json.dumps({"predict_type": "default", "nthread": threads}).encode()
        self._check(self._library.TreeliteGTILParseConfig(config, ctypes.byref(self._config)))

    def _release(self) -> None:
        if self._config:
            self._library.TreeliteGTILDeleteConfig(self._config)
            self._config = ctypes.c_void_p()

    def __del__(self) -> None:
        self._release()

    def predict(self, rows: Array) -> Array:
        given = np.ascontiguousarray(rows, self._dtype)
        output = np.empty((len(given), self._forest.classes), self._dtype)
        status = self._library.TreeliteGTILPredict(
            self._handle, given.ctypes.data, self._type, len(given), output.ctypes.data, self._config
        )
        self._check(status)
        return output

    def _check(self, status: int) -> None:
        if status:
            raise Internal(self._library.TreeliteGetLastError().decode(errors="replace"))
