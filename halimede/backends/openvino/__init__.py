"""The backend `openvino`: OpenVINO IR, and what OpenVINO's own readers take: ONNX, TensorFlow, TFLite, Paddle.

Importing this package does not import the runtime."""

from types import MappingProxyType

from halimede.backends.traits import Format, Home, Traits

TRAITS = Traits(
    "openvino",
    "halimede.backends.openvino.backend:OpenVinoBackend",
    formats=(Format("model.xml", directory=False, ending=".xml", companion=".bin"),),
    aliases=("open_vino", "ov"),
    extra="openvino",
    conversions=MappingProxyType({"openvino": "halimede.backends.openvino.conversion:to_ir"}),
    tensors_only=True,
    ragged=True,
    states=True,
    homes=(Home.SERVER, Home.CHILD),
)
