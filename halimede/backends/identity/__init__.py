"""The backend `identity`: returns each input as an output, so that the cost of the server alone can be measured."""

from halimede.backends.traits import Completes, DeviceKind, Home, Traits

TRAITS = Traits(
    "identity",
    "halimede.backends.identity.backend:IdentityBackend",
    aliases=("echo",),
    tensors_only=True,
    completes=Completes.NEVER,
    optional_inputs=True,
    ragged=True,
    homes=(Home.SERVER, Home.CHILD),
    devices=frozenset({DeviceKind.CPU, DeviceKind.GPU}),
)
