"""Halimede: an inference server in Python that speaks Triton's protocols and serves its model repositories.

`Server` serves functions of a program. It and what belongs to it are imported when they are first used.
"""

from importlib import import_module

from halimede.compiled import FORM as FORM

__version__ = "0.1.0"

_PUBLIC = {
    "Request": "halimede.backends.function.request",
    "Server": "halimede.binding.server",
    "Tensor": "halimede.binding.tensors",
}
"""The modules of the names for programs. `__init__.pyi` has them for type checkers."""


def __getattr__(name: str) -> object:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'halimede' has no attribute '{name}'")
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])
