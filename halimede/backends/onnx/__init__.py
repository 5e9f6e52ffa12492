"""The backend `onnxruntime`: ONNX models on ONNX Runtime. Importing this package does not import the runtime."""

from types import MappingProxyType

from halimede.backends.traits import DeviceKind, Format, Home, Traits

TRAITS = Traits(
    "onnxruntime",
    "halimede.backends.onnx.backend:OnnxRuntimeBackend",
    formats=(Format("model.onnx", "onnxruntime_onnx", ending=".onnx"),),
    aliases=("onnx", "ort", "onnx_runtime"),
    extra="onnx",
    # The runtime reports to its maker, and keeps a database for that in the home directory.
    environment=MappingProxyType({"ORT_DISABLE_TELEMETRY": "1"}),
    alternative="export the model to ONNX",
    conversions=MappingProxyType({"onnx": "halimede.backends.onnx.conversion:to_onnx"}),
    tensors_only=True,
    optional_inputs=True,
    ragged=True,
    states=True,
    homes=(Home.SERVER, Home.CHILD),
    devices=frozenset({DeviceKind.CPU, DeviceKind.GPU}),
    cpu_instances=2,
)
