"""`triton_python_backend_utils` in the server's process: one module per instance.

In a worker there is one such module. Here `get_model_dir`, `Logger`, `load_model`, the metrics and the calls of an
`InferenceRequest` must know their instance, also on threads that the model started: so each instance has a module and a
request class of its own.
"""

import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from halimede.workers.child import triton_python_backend_utils as shared
from halimede.workers.child.calls import ModelCaller
from halimede.workers.child.requests import InferenceRequest
from halimede.workers.in_process.imports import package_on_the_stack

NAME = "triton_python_backend_utils"


class Interface:
    """`request` is the class of the requests that this instance gets and makes, `modules` what it imports by name."""

    def __init__(self, model_dir: str, logger: type, caller: ModelCaller) -> None:
        shared.name_natively()
        fields: dict[str, Any] = {"__slots__": (), "_caller": caller, "__module__": shared.NATIVE}
        self.request: type[InferenceRequest] = type("InferenceRequest", (InferenceRequest,), fields)
        names = {**shared.spoken_for(model_dir, logger, caller), "InferenceRequest": self.request}
        module = ModuleType(NAME, shared.__doc__)
        vars(module).update(_common(), **names)
        self.modules: Mapping[str, ModuleType] = {NAME: module, shared.NATIVE: module}
        sys.modules.setdefault(NAME, _OfLibraries(names))


class _OfLibraries(ModuleType):
    """The module that a library imports by that name, which belongs to no model. Names that belong to an instance are
    looked up at each use, in the module of the model on the stack."""

    def __init__(self, spoken: Mapping[str, object]) -> None:
        super().__init__(NAME, shared.__doc__)
        vars(self).update({name: value for name, value in _common().items() if name not in spoken})

    def __getattr__(self, name: str) -> Any:
        package = package_on_the_stack(2)
        if package is None or name.startswith("__"):
            raise AttributeError(f"module '{NAME}' has '{name}' only for the code of a model")
        return getattr(getattr(package, NAME), name)


def _common() -> dict[str, Any]:
    return {name: value for name, value in vars(shared).items() if not name.startswith("__")}
