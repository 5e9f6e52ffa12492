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
            # OpenMP's threads spin for milliseconds where they wait for each other. On a busy machine MiniLM took 1.1 s
            # with two of them, 0.07 s with this, and 0.02 s with one thread.
            "GOMP_SPINCOUNT": "1000",
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
