"""IR of other files, for `halimede convert`. Imports no runtime; `converters` is the program that does."""

from pathlib import Path
from types import MappingProxyType

from halimede.backends.conversion import Conversion, Way, run_converter

_READ = Way("from_file", {"openvino": "openvino"})
WAYS = MappingProxyType(
    {
        "model.onnx": _READ,
        "model.savedmodel": _READ,
        "model.graphdef": _READ,
        "model.tflite": _READ,
        "model.pt": Way("from_script", {"openvino": "openvino", "torch": "torch"}),
        "model.pt2": Way("from_program", {"openvino": "openvino", "torch": "torch"}),
    }
)


def to_ir(asked: Conversion) -> Path:
    """Raises Error."""
    return run_converter(asked, Path(__file__).with_name("converters.py"), ".xml", WAYS)
