"""One model, served in this process to one caller: the engine without ports. On the event loop."""

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
    """A reply slot that keeps what it is sent, until the last, and tells `arrived` of it. What that raises ends it."""

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
            except Exception as error:  # a slot never raises
                self.broken = error
        if final or self.broken is not None:
            self.over.set()
        return True

    def on_writable(self, resume: Resume) -> None:
        resume()


class Session:
    """`folder` is the model's directory; `version` is -1 for the one that its configuration chooses. The models of the
    repositories in `options` are there to be called: those of `load_models`, or all of them. One there that has the
    name of this model is not seen."""

    def __init__(self, folder: Path, version: int, options: ServerOptions) -> None:
        if not folder.is_dir():
            raise Invalid(f"'{folder}' is no model directory")
        self._folder = folder.resolve()
        self._version = version
        self._options = options
        self._engine: Engine | None = None

    @property
    def name(self) -> str:
        return self._folder.name

    async def open(self) -> ModelConfig:
        """Loads the model and those that it may call; its configuration, completed. Raises Error; why a load failed is
        in the log."""
        options = self._options
        repositories = sorted({str(Path(each).resolve()) for each in options.model_repositories})
        others = set(options.load_models) or set(scan(repositories).models)
        options = replace(
            options,
            model_repositories=tuple(repositories),
            model_control_mode="explicit",
            metrics=replace(options.metrics, allowed=False),
            load_models=tuple(sorted(others - {self.name})),
            allow_code_upload=True,  # whoever runs a model here may run any
        )
        self._engine = engine = Engine(options, asyncio.get_running_loop(), catalog_of=self._catalog)
        if not await engine.start():
            raise Invalid("not all models could be loaded that this one may call")
        try:
            await self._ask(engine, LoadModel(self.name, self._only_this_version()))
        except Error as error:
            record = engine.models.get(self.name)
            if record is not None and record.versions:  # the log has said of each why it was not loaded
                raise Invalid(f"model '{self.name}' could not be loaded") from error
            raise
        return engine.models.find(self.name, self._version).config

    def _catalog(self, repositories: Sequence[str]) -> Catalog:
        found = scan(repositories)
        models = {**found.models, self.name: FoundModel(self.name, self._folder)}
        return Catalog(models, tuple(name for name in found.duplicates if name != self.name))

    def _only_this_version(self) -> str | None:
        """The configuration for a load of a version that its policy may not choose."""
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
        """All answers to one request, in order; `arrived` is told of each at once. There may be none. Raises what
        `arrived` raises."""
        assert self._engine is not None
        reply = Collected(arrived)
        request.decoupled_ok = True
        key = self._engine.infer(request, reply)
        try:
            await reply.over.wait()
        finally:
            if reply.broken is not None or not reply.over.is_set():
                self._engine.cancel(key)
        if reply.broken is not None:
            raise reply.broken
        return reply.answers

    async def close(self, seconds: float) -> bool:
        """Has the models finalized; whether all of them were done in time."""
        if self._engine is None:
            return True
        if not self._engine.started:
            await self._engine.give_up()
        return await self._engine.stop(seconds)
