"""What a serialised pipeline declares. DALI's Python does not tell the names and types of the inputs, so this asks the
C interface, as Triton's backend does. Load threads of a child process.
"""

import ctypes
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import nvidia.dali
from nvidia.dali import types

from halimede.backends.dali.configuration import PipelineShape, PipelineTensor
from halimede.errors import Cause, Unknown
from halimede.tensors import DATATYPES, DataType

DATATYPES_OF_DALI: Mapping[int, DataType] = MappingProxyType(
    {
        int(types.DALIDataType.BOOL): DATATYPES["BOOL"],
        **{int(getattr(types.DALIDataType, f"{sign}INT{bits}")): DATATYPES[f"{sign}INT{bits}"]
           for sign in ("", "U") for bits in (8, 16, 32, 64)},
        int(types.DALIDataType.FLOAT16): DATATYPES["FP16"],
        int(types.DALIDataType.FLOAT): DATATYPES["FP32"],
        int(types.DALIDataType.FLOAT64): DATATYPES["FP64"],
    }
)  # fmt: skip
_VIDEO = b"inputs__Video"
"""The end of the names of operators that make several outputs of one input."""


def shape_of(serialized: bytes) -> PipelineShape:
    """Raises Unknown if it is no pipeline."""
    library = _library()
    with _pipeline(library, serialized) as handle:
        inputs = [library.daliGetExternalInputName(handle, i) for i in range(library.daliGetNumExternalInput(handle))]
        outputs = range(library.daliGetNumOutput(handle))
        return PipelineShape(
            tuple(
                _tensor(
                    name, library.daliGetExternalInputType(handle, name), library.daliGetExternalInputNdim(handle, name)
                )
                for name in inputs
            ),
            tuple(
                _tensor(
                    library.daliGetOutputName(handle, i),
                    library.daliGetDeclaredOutputDtype(handle, i),
                    library.daliGetDeclaredOutputNdim(handle, i),
                )
                for i in outputs
            ),
            library.daliGetMaxBatchSize(handle),
            _VIDEO in serialized,
        )


def has_driver() -> bool:
    """Whether the driver of an NVIDIA GPU is installed."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def _tensor(name: bytes, datatype: int, ndim: int) -> PipelineTensor:
    known = DATATYPES_OF_DALI.get(datatype)
    return PipelineTensor(name.decode(), known.config_name if known else "", ndim if ndim >= 0 else None)


def _library() -> Any:
    library = ctypes.CDLL(str(Path(nvidia.dali.__file__).with_name("libdali.so")))
    for name in ("daliGetExternalInputName", "daliGetOutputName"):
        getattr(library, name).restype = ctypes.c_char_p
    library.daliInitialize()
    return library


@contextmanager
def _pipeline(library: Any, serialized: bytes) -> Iterator[Any]:
    # The C interface ends the process for what is no pipeline; the Python interface raises.
    checked(serialized)
    handle = ctypes.byref(ctypes.c_void_p())
    library.daliDeserializeDefault(handle, serialized, len(serialized))
    try:
        yield handle
    finally:
        library.daliDeletePipeline(handle)


def checked(serialized: bytes) -> None:
    """Raises Unknown if DALI cannot read it."""
    try:
        # On no device: the operators of the pipeline are not made.
        nvidia.dali.Pipeline.deserialize(serialized, device_id=None, batch_size=1)
    except Exception as error:
        text = f"DALI Backend error: Error while instantiating DALI pipeline: {error}"
        raise Unknown(text).blaming(Cause.FILE) from error
