"""The backend `tensorrt`: TensorRT plans on NVIDIA GPUs. Importing this package does not import the runtime."""

from halimede.backends.traits import Completes, DeviceKind, Format, Traits

TRAITS = Traits(
    "tensorrt",
    "halimede.backends.tensorrt.backend:TensorRtBackend",
    formats=(Format("model.plan", "tensorrt_plan", directory=False, ending=".plan"),),
    aliases=("trt", "tensor_rt"),
    extra="tensorrt",
    tensors_only=True,
    completes=Completes.ALWAYS,
    ragged=True,
    states=True,
    devices=frozenset({DeviceKind.GPU}),
)
