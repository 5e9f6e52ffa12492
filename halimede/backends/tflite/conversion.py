"""TensorFlow Lite files of TensorFlow's, for `halimede convert`. Imports no runtime; `converters` is the program that
does."""

from pathlib import Path
from types import MappingProxyType

from halimede.backends.conversion import Conversion, Way, run_converter

WAYS = MappingProxyType(
    {
        "model.savedmodel": Way("from_saved_model", {"tensorflow": "tensorflow"}, True),
        "model.graphdef": Way("from_graph", {"tensorflow": "tensorflow"}, True),
    }
)


def to_tflite(asked: Conversion) -> Path:
    """Raises Error."""
    return run_converter(asked, Path(__file__).with_name("converters.py"), ".tflite", WAYS)
