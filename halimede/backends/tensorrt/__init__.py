"""The backend `tensorrt`: TensorRT plans on NVIDIA GPUs. Importing this package does not import the runtime."""

from halimede.backends.traits import Completes, DeviceKind, Format, Home, Traits

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
    homes=(Home.SERVER, Home.CHILD),
    devices=frozenset({DeviceKind.GPU}),
)
