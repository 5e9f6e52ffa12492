"""Whether what a client's load brings may run here: code needs the operator's consent (`--allow-code-upload`).

Event-loop thread only; the repository's own configuration is read by whoever `inspection_of` asks.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

from halimede.engine_port import LoadModel
from halimede.errors import Error, Unsupported
from halimede.models.loader import Code, Inspection
from halimede.models.repository import FoundModel
from halimede.models.upload import place_of

_CODE = frozenset({".py", ".pyc", ".pyd", ".pyo", ".so", ".dll", ".dylib", ".pth", ".pkl", ".sh"})


class LoadConsent:
    def __init__(self, allowed: bool, inspection_of: Callable[[FoundModel], Awaitable[Inspection]]) -> None:
        self._allowed = allowed
        self._inspection_of = inspection_of

    async def check(self, query: LoadModel, found: FoundModel, seen: Inspection) -> None:
        """Raises Unsupported where the load brings code, by its files or by its configuration, and must not."""
        if self._allowed:
            return
        if query.files:
            self._check_files(query, seen)
        elif found.config is not None:
            await self._check_override(found, seen)

    def _check_files(self, query: LoadModel, seen: Inspection) -> None:
        """Files that would run as code."""
        code = [path for path, _ in query.files if _CODE.intersection(Path(place_of(path).lower()).suffixes)]
        if code or seen.code is not None:
            raise _refusal(query.model, f"file '{code[0]}'" if code else f"a model of the backend '{seen.backend}'")

    async def _check_override(self, found: FoundModel, seen: Inspection) -> None:
        """A configuration that makes code of files that are none by the repository's own."""
        if seen.code is None:
            return
        own = await self._code_of(replace(found, config=None))
        if own is None or own.backend != seen.code.backend:
            raise _refusal(found.name, f"a model of the backend '{seen.backend}'")
        if seen.code.environment not in ("", own.environment):
            raise _refusal(found.name, f"the environment '{seen.code.environment}'")
        if seen.code.execution not in ("", own.execution):
            raise _refusal(found.name, f"the execution '{seen.code.execution}'")

    async def _code_of(self, found: FoundModel) -> Code | None:
        try:
            return (await self._inspection_of(found)).code
        except Error:
            return None  # nothing in the repository says so


def _refusal(model: str, what: str) -> Unsupported:
    return Unsupported(
        f"load of model '{model}' brings code ({what}). Start the server with '--allow-code-upload=true' to allow that."
    )
