"""The backend `python`: models that are code, a class `TritonPythonModel` (contract P)."""

from halimede.backends.traits import Completes, Device, Format, Home, Reads, Threads, Traits

TRAITS = Traits(
    "python",
    "halimede.backends.python.backend:PythonBackend",
    formats=(Format("model.py", ending=".py", fills_version=True),),
    aliases=("py",),
    alternative="load it in a model.py",
    runs_user_code=True,
    runs_python_backends=True,
    reads=Reads.REQUESTS,
    completes=Completes.ALWAYS,
    optional_inputs=True,
    ragged=True,
    states=True,
    calls_models=True,
    devices=frozenset({Device.CPU, Device.GPU}),
    threads=Threads.MODEL,
    homes=(Home.CHILD, Home.SERVER),
    starts_children=True,
    outline="halimede.backends.python.source:look_at",
)
