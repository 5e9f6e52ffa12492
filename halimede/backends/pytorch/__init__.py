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
            # OpenMP's threads wait for each other in a loop before they sleep. The library lets them try 300,000 times.
            # Beside two busy programs, one run of MiniLM in ten then takes longer than 104 ms: 65 ms with 20,000 times,
            # 21 ms with 5,000 and 22 ms with 1,000. On a quiet machine 5,000 are about 5 % faster than 1,000.
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
