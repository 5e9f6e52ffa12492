"""The backend `identity`: hands each input back as an output, to show what the server itself costs."""

from halimede.backends.traits import Completes, Device, Home, Reads, Traits

TRAITS = Traits(
    "identity",
    "halimede.backends.identity.backend:IdentityBackend",
    aliases=("echo",),
    tensors_only=True,
    reads=Reads.REQUESTS,
    completes=Completes.NEVER,
    optional_inputs=True,
    ragged=True,
    homes=(Home.SERVER, Home.CHILD),
    devices=frozenset({Device.CPU, Device.GPU}),
)
