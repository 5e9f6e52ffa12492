"""Whether a client's load may bring code that this server runs: only with `--allow-code-upload=true`.

A client brings code with the files of a load, or with a configuration that turns files of the repository into code.
On the event loop; the files of a load are looked at on a thread.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from halimede.engine_port import LoadModel
from halimede.errors import Error, Unsupported
from halimede.loading.uploads import path_within_model
from halimede.models.inspection import Code, Inspection
from halimede.models.repository import FoundModel

_CODE_SUFFIXES = frozenset({".py", ".pyc", ".pyd", ".pyo", ".so", ".dll", ".dylib", ".pth", ".pkl", ".sh"})


class CodeUploadCheck:
    """`inspect` reads the configuration in the model's folder, to compare it with the one of the load. `on_thread` runs
    work that takes long."""

    def __init__(
        self,
        allowed: bool,
        inspect: Callable[[FoundModel], Awaitable[Inspection]],
        on_thread: Callable[[Callable[[], None]], Awaitable[None]],
    ) -> None:
        self._allowed = allowed
        self._inspect = inspect
        self._on_thread = on_thread

    async def check(self, query: LoadModel, found: FoundModel, inspection: Inspection) -> None:
        """Raises Unsupported if the load brings code and must not."""
        if self._allowed:
            return
        # With files the whole model comes from the client; otherwise only its configuration may.
        if query.files:
            # Ten thousand paths take too long for the loop.
            await self._on_thread(partial(self._check_files, query, inspection))
        elif found.config is not None:
            await self._check_override(found, inspection)

    @staticmethod
    def _check_files(query: LoadModel, inspection: Inspection) -> None:
        # Any suffix counts, not only the last: the loader of the system takes `libx.so.2` as well.
        code = [
            path
            for path, _ in query.files
            if _CODE_SUFFIXES.intersection(Path(path_within_model(path).lower()).suffixes)
        ]
        if code or inspection.code is not None:
            raise _refusal(
                query.model, f"file '{code[0]}'" if code else f"a model of the backend '{inspection.backend}'"
            )

    async def _check_override(self, found: FoundModel, inspection: Inspection) -> None:
        """The configuration may keep what the one in the folder says of code, and nothing else."""
        if inspection.code is None:
            return
        own = await self._code_in_folder(found)
        # An empty one is the server's default, which brings no code.
        if inspection.code.environment not in ("", "" if own is None else own.environment):
            raise _refusal(found.name, f"the environment '{inspection.code.environment}'")
        if own is None or own.backend != inspection.code.backend:
            raise _refusal(found.name, f"a model of the backend '{inspection.backend}'")
        if inspection.code.execution not in ("", own.execution):
            raise _refusal(found.name, f"the execution '{inspection.code.execution}'")

    async def _code_in_folder(self, found: FoundModel) -> Code | None:
        try:
            return (await self._inspect(replace(found, config=None))).code
        except Error:
            return None  # a configuration that cannot be read allows nothing


def _refusal(model: str, what: str) -> Unsupported:
    return Unsupported(
        f"load of model '{model}' brings code ({what}). Start the server with '--allow-code-upload=true' to allow that."
    )
