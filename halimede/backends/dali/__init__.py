"""The backend `dali`: pipelines of NVIDIA's Data Loading Library. Importing this package does not import it."""

from halimede.backends.traits import Completes, DeviceKind, Format, Home, Traits

TRAITS = Traits(
    "dali",
    "halimede.backends.dali.backend:DaliBackend",
    formats=(
        Format("model.dali", directory=False, ending=".dali"),
        Format("dali.py", directory=False),
    ),
    extra="dali",
    runs_user_code=True,
    tensors_only=True,
    completes=Completes.ALWAYS,  # what the pipeline declares is checked, and every input can be ragged (BD5, BD6)
    ragged=True,
    homes=(Home.CHILD,),  # a pipeline that is used wrongly may end its process
    devices=frozenset({DeviceKind.CPU, DeviceKind.GPU}),
)
