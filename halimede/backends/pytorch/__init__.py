"""The backend `pytorch`: TorchScript, exported programs and Python modules on torch. Importing this package does not
import torch."""

from types import MappingProxyType

from halimede.backends.traits import DeviceKind, Format, Home, Traits

TRAITS = Traits(
    "pytorch",
    "halimede.backends.pytorch.backend:PyTorchBackend",
    formats=(
        Format("model.pt", "pytorch_libtorch", directory=False, ending=".pt"),
        Format("model.pt2", "torch_aoti", directory=False, ending=".pt2"),
    ),
    runtimes=("model.py",),
    aliases=("torch", "libtorch", "torchscript"),
    extra="torch",
    # Code that AOTInductor compiled checks the shapes of its inputs only then, and otherwise reads whatever is there.
    environment=MappingProxyType({"AOTI_RUNTIME_CHECK_INPUTS": "1"}),
    # TorchScript can open and write files, a PT2 package holds machine code, and a runtime is Python (BT33).
    runs_user_code=True,
    tensors_only=True,
    ragged=True,
    states=True,
    homes=(Home.SERVER, Home.CHILD),
    usual_home="halimede.backends.pytorch.archive:usual_home",
    devices=frozenset({DeviceKind.CPU, DeviceKind.GPU}),
)
