"""The backend `tflite`: TensorFlow Lite models on LiteRT. Importing this package does not import the runtime."""

from types import MappingProxyType

from halimede.backends.traits import Format, Home, Traits

TRAITS = Traits(
    "tflite",
    "halimede.backends.tflite.backend:TfliteBackend",
    formats=(Format("model.tflite", ending=".tflite"),),
    aliases=("tensorflow_lite", "litert"),
    extra="tflite",
    conversions=MappingProxyType({"tflite": "halimede.backends.tflite.conversion:to_tflite"}),
    tensors_only=True,
    ragged=True,
    states=True,
    homes=(Home.SERVER, Home.CHILD),
)
