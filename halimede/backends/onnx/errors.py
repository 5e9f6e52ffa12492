"""Errors of ONNX Runtime in the server's words. Needs no runtime."""

import re

from halimede.errors import Error, Internal

_ORT_ERROR = re.compile(r"\[ONNXRuntimeError\] : (\d+) : \w+ : (.*)", re.DOTALL)


def translated(error: Exception) -> Error:
    """An exception of the runtime as the real server's backend words it: `onnx runtime error 2: ...`."""
    if isinstance(error, Error):
        return error
    match = _ORT_ERROR.fullmatch(str(error).strip())
    if match is None:
        return Internal(f"onnx runtime error: {error}")
    return Internal(f"onnx runtime error {match[1]}: {match[2].strip()}")
