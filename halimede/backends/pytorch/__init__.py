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
    environment=MappingProxyType(
        {
            # Code that AOTInductor compiled checks the shapes of its inputs only then, and otherwise reads whatever is
            # there.
            "AOTI_RUNTIME_CHECK_INPUTS": "1",
            # OpenMP's threads spin for milliseconds where they wait for each other. Beside two busy programs one run of
            # MiniLM in ten took longer than 22 ms with 1,000 steps, 21 with 5,000, 65 with 20,000 and 104 with 300,000,
            # the library's value. On a quiet machine 5,000 are 5 % faster than 1,000, and 300,000 another 3 %.
            "GOMP_SPINCOUNT": "5000",
        }
    ),
    # TorchScript can open and write files, a PT2 package holds machine code, and a runtime is Python (BT33).
    runs_user_code=True,
    tensors_only=True,
    ragged=True,
    states=True,
    homes=(Home.SERVER, Home.CHILD),
    usual_home="halimede.backends.pytorch.archive:usual_home",
    devices=frozenset({DeviceKind.CPU, DeviceKind.GPU}),
)
