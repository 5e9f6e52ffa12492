"""The sandbox of a backend's child processes, if `--backend-config=NAME,sandbox=on` asks for one. Load threads."""

from dataclasses import replace
from typing import TYPE_CHECKING

from halimede.backends.api import ModelFolder
from halimede.workers.host.process import Interpreter
from halimede.workers.host.sandbox_settings import SandboxSettings

if TYPE_CHECKING:
    from halimede.workers.host.sandbox import Sandbox


def new_sandbox(settings: SandboxSettings | None, backend: str) -> "Sandbox | None":
    """What the machine does not allow is found out when the first process starts."""
    if settings is None:
        return None
    from halimede.workers.host.sandbox import Sandbox  # most servers have none

    return Sandbox(settings, backend)


def confined(interpreter: Interpreter, sandbox: "Sandbox | None", folder: ModelFolder | None) -> Interpreter:
    """The interpreter, in the sandbox if there is one. Without a `folder` the process runs no code of a model."""
    if sandbox is None:
        return interpreter
    model, code = (None, None) if folder is None else (folder.model, folder.code)
    return replace(interpreter, confinement=sandbox.of_model(model, code, interpreter.path, interpreter.libraries))
