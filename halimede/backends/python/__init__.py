"""The backend `python`: models that are code, a class `TritonPythonModel` (contract P)."""

from types import MappingProxyType

from halimede.backends.traits import Completes, DeviceKind, Format, Home, Traits

TRAITS = Traits(
    "python",
    "halimede.backends.python.backend:PythonBackend",
    formats=(Format("model.py", ending=".py", fills_version=True),),
    aliases=("py",),
    alternative="load it in a model.py",
    runs_user_code=True,
    runs_python_backends=True,
    platforms=MappingProxyType({"pytorch": "halimede.backends.python.platforms.pytorch_platform"}),
    completes=Completes.ALWAYS,
    optional_inputs=True,
    ragged=True,
    states=True,
    checks_outputs=False,
    calls_models=True,
    devices=frozenset({DeviceKind.CPU, DeviceKind.GPU}),
    homes=(Home.CHILD, Home.SERVER),
    starts_children=True,
    outline="halimede.backends.python.source:look_at",
)
