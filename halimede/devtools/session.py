"""One model for one caller: an engine without ports in this process. On the event loop."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from halimede.config import ModelConfig, read
from halimede.devtools.neighbours import needed_by, steps_of
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

    The model may call those of the repositories in `options`: the ones in `load_models`, or all of them. An ensemble
    gets only those that it needs. Without repositories the one around `folder` counts, with the models that this one
    needs (`neighbours`). A model there with the same name is hidden. Raises Invalid if `folder` is not a directory.
    """

    def __init__(self, folder: Path, version: int, options: ServerOptions) -> None:
        if not folder.is_dir():
            hint = f"; `halimede init {folder} REPO` makes one of the file" if folder.is_file() else ""
            raise Invalid(f"'{folder}' is not a model directory{hint}")
        self._folder = folder.resolve()
        self._version = version
        self._options = options
        self._engine: Engine | None = None

    @property
    def name(self) -> str:
        return self._folder.name

    async def start(self) -> None:
        """Loads the models that this one may call. Raises Error if a repository cannot be read, or if a model that must
        be there could not be loaded; the log has the reason."""
        options = self._options
        given = sorted({str(Path(each).resolve()) for each in options.model_repositories})
        repositories, models = (given, scan(given).models) if given else self._around()
        chosen = set(options.load_models)
        # Models that are only guessed to be needed need not load: the one that lacks them will say so.
        guessed = not chosen and (not given or bool(steps_of(self._folder, options.model_config_name)))
        others = chosen or (self._needed(models) if guessed else set(models))
        options = replace(
            options,
            model_repositories=tuple(repositories),
            model_control_mode="explicit",
            metrics=replace(options.metrics, allowed=False),
            load_models=tuple(sorted(others - {self.name})),
            allow_code_upload=True,  # the caller can run any code here anyway
        )
        self._engine = Engine(options, asyncio.get_running_loop(), catalog_of=self._catalog)
        if not await self._engine.start() and not guessed:
            raise Invalid("some of the models that this one may call could not be loaded")

    async def load(self) -> ModelConfig:
        """Loads the model, after `start`. Returns its completed configuration. Raises Error. If the log got an error
        meanwhile, it names the reason."""
        assert self._engine is not None
        await self._ask(self._engine, LoadModel(self.name, self._only_this_version()))
        return self._engine.models.find(self.name, self._version).config

    def _around(self) -> tuple[list[str], dict[str, FoundModel]]:
        """The directory around the model as a repository, with its models."""
        around = [str(self._folder.parent)]
        try:
            return around, scan(around).models
        except Invalid:  # it may not be listed, and need not be a repository
            return [], {}

    def _needed(self, models: Mapping[str, FoundModel]) -> set[str]:
        """What must be loaded before the model is. An ensemble loads its steps itself."""
        name = self._options.model_config_name
        needed = needed_by(self._folder, models)
        folders = [self._folder, *(models[each].folder for each in needed)]
        return needed.difference(*(steps_of(folder, name) for folder in folders))

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
        if not self._engine.started:  # `start` did not end: its loads must stop first
            await self._engine.give_up()
        return await self._engine.stop(seconds)
