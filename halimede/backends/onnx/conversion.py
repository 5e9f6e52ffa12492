"""ONNX files of other files, for `halimede convert`. Imports no runtime; `exporters` is the program that does."""

from pathlib import Path
from types import MappingProxyType

from halimede.backends.conversion import Conversion, Way, run_converter

WAYS = MappingProxyType(
    {
        "model.pt": Way("from_script", {"torch": "torch", "onnx": "convert"}),
        "model.pt2": Way("from_program", {"torch": "torch", "onnxscript": "convert"}),
        "model.savedmodel": Way("from_saved_model", {"tensorflow": "tensorflow", "tf2onnx": "convert"}, True),
        "model.graphdef": Way("from_graph", {"tensorflow": "tensorflow", "tf2onnx": "convert"}, True),
        "model.tflite": Way("from_tflite", {"tensorflow": "tensorflow", "tf2onnx": "convert"}, True),
    }
)


def to_onnx(asked: Conversion) -> Path:
    """Raises Error."""
    return run_converter(asked, Path(__file__).with_name("exporters.py"), ".onnx", WAYS)
