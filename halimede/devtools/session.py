"""One model for one caller: an engine without ports in this process. On the event loop."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from halimede.config import ModelConfig, read
from halimede.engine.engine import Engine
from halimede.engine_port import LoadModel, Query
from halimede.errors import Error, Invalid
from halimede.models.repository import Catalog, FoundModel, scan
from halimede.options import ServerOptions
from halimede.requests import Answer, InferRequest, InferResponse, Resume

A = TypeVar("A")


Response = InferResponse | Error


class Collected:
    """A reply slot that keeps the responses and calls `arrived` with each. An error of `arrived` ends it."""

    def __init__(self, arrived: Callable[[Response], None]) -> None:
        self.answers: list[Response] = []
        self.over = asyncio.Event()
        self.broken: Exception | None = None
        self._arrived = arrived

    def send(self, answer: Answer, final: bool) -> bool:
        if answer is not None and self.broken is None:
            self.answers.append(answer)
            try:
                self._arrived(answer)
            except Exception as error:  # the engine does not expect a slot to raise
                self.broken = error
        if final or self.broken is not None:
            self.over.set()
        return True

    def on_writable(self, resume: Resume) -> None:
        resume()


class Session:
    """Runs the model in `folder`. `version` is -1 for the one that its configuration chooses.

    The model may call those of the repositories in `options`: the ones in `load_models`, or all of them. A model there
    with the same name is hidden. Raises Invalid if `folder` is not a directory.
    """

    def __init__(self, folder: Path, version: int, options: ServerOptions) -> None:
        if not folder.is_dir():
            raise Invalid(f"'{folder}' is not a model directory")
        self._folder = folder.resolve()
        self._version = version
        self._options = options
        self._engine: Engine | None = None

    @property
    def name(self) -> str:
        return self._folder.name

    async def open(self) -> ModelConfig:
        """Loads the model and those that it may call. Returns its completed configuration.

        Raises Error. The log has the reason why a load failed.
        """
        options = self._options
        repositories = sorted({str(Path(each).resolve()) for each in options.model_repositories})
        others = set(options.load_models) or set(scan(repositories).models)
        options = replace(
            options,
            model_repositories=tuple(repositories),
            model_control_mode="explicit",
            metrics=replace(options.metrics, allowed=False),
            load_models=tuple(sorted(others - {self.name})),
            allow_code_upload=True,  # the caller can run any code here anyway
        )
        self._engine = engine = Engine(options, asyncio.get_running_loop(), catalog_of=self._catalog)
        if not await engine.start():
            raise Invalid("some of the models that this one may call could not be loaded")
        try:
            await self._ask(engine, LoadModel(self.name, self._only_this_version()))
        except Error as error:
            record = engine.models.get(self.name)
            if record is not None and record.versions:  # the log has the reason for each version
                raise Invalid(f"model '{self.name}' could not be loaded") from error
            raise
        return engine.models.find(self.name, self._version).config

    def _catalog(self, repositories: Sequence[str]) -> Catalog:
        found = scan(repositories)
        models = {**found.models, self.name: FoundModel(self.name, self._folder)}
        return Catalog(models, tuple(name for name in found.duplicates if name != self.name))

    def _only_this_version(self) -> str | None:
        """The configuration for a load of exactly this version, whatever its policy is; None to follow the policy."""
        if self._version == -1:
            return None
        options = self._options
        draft = read(self._folder, config_name=options.model_config_name, strict=not options.auto_complete_config)
        return draft.json_of_version(self._version)

    async def _ask(self, engine: Engine, query: Query[A]) -> A:
        future: asyncio.Future[A | Error] = asyncio.get_running_loop().create_future()
        engine.ask(query, future.set_result)
        answer = await future
        if isinstance(answer, Error):
            raise answer
        return answer

    async def infer(
        self, request: InferRequest, arrived: Callable[[Response], None] = lambda answer: None
    ) -> Sequence[Response]:
        """Returns all responses to one request, in order; there may be none. Calls `arrived` with each as it comes.

        Raises what `arrived` raises.
        """
        assert self._engine is not None
        reply = Collected(arrived)
        request.decoupled_ok = True  # `Collected` takes any number of responses
        key = self._engine.infer(request, reply)
        try:
            await reply.over.wait()
        finally:
            # The caller was cancelled, or cannot take more responses.
            if reply.broken is not None or not reply.over.is_set():
                self._engine.cancel(key)
        if reply.broken is not None:
            raise reply.broken
        return reply.answers

    async def close(self, seconds: float) -> bool:
        """Unloads the models. Returns whether all of them ended within `seconds`."""
        if self._engine is None:
            return True
        if not self._engine.started:  # `open` did not end: its loads must stop first
            await self._engine.give_up()
        return await self._engine.stop(seconds)
