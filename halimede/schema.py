"""The field's own protobuf messages, as the package of the Triton client has them, and nothing else of that package:
the client itself and gRPC's library take 20 ms to import, which no server needs.
"""

import sys
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any

_PACKAGE = "tritonclient.grpc"
_MODULES = ("model_config_pb2", "service_pb2")


def _imported() -> list[ModuleType]:
    """Imports the two modules of a package that runs no code of its own, and forgets all three: whoever imports the
    package after this gets the whole of it. Messages are the same there, since protobuf makes each class once."""
    spec = None if _PACKAGE in sys.modules else find_spec(_PACKAGE)
    if spec is None:  # it is imported already, or raises what the import of a missing package does
        return [import_module(f"{_PACKAGE}.{name}") for name in _MODULES]
    sys.modules[_PACKAGE] = module_from_spec(spec)
    try:
        return [import_module(f"{_PACKAGE}.{name}") for name in _MODULES]
    finally:
        for name in (_PACKAGE, *(f"{_PACKAGE}.{each}" for each in _MODULES)):
            sys.modules.pop(name, None)


model_config_pb2: Any
service_pb2: Any
model_config_pb2, service_pb2 = _imported()
