"""Random histories of loads and unloads: folders change, clients load and unload, polls come, threads end their work in
any order. Beside them runs a simple model of what must be served.

The control, the loader and the table are real. The backend and the threads are fakes: the history decides when a load
ends.
"""

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from halimede.backends.api import ModelFolder
from halimede.config import ModelConfig
from halimede.engine_port import LoadModel, UnloadModel
from halimede.errors import Error, Invalid, NotFound, Unavailable
from halimede.loading.concurrency import LoadThreads, ModelLocks
from halimede.loading.model_loads import ModelLoads
from halimede.loading.repository_control import RepositoryControl
from halimede.loading.repository_poll import NS, RepositoryPoll
from halimede.measurement.statistics import Statistics
from halimede.models.backend_pool import BackendPool
from halimede.models.lifecycle import ModelTable, VersionState
from halimede.models.repository import scan
from halimede.models.version import ModelVersion
from halimede.options import ServerOptions
from tests.fakes import ManualLoop
from tests.models.fakes import FakeBackend, FakeModel

MODELS = ("a", "b")
EVENTS = 9
SETTLE = 2
_TENSORS = "".join(f'{put} {{ name: "{put}" data_type: TYPE_INT32 dims: [ -1 ] }}\n' for put in ("input", "output"))


class HandThreads(LoadThreads):
    """Does short work at once. A load waits until the history runs it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._the_loop = loop
        self.waiting: list[tuple[asyncio.Future[Any], Callable[[], Any]]] = []

    async def read_repository(self, work: Callable[..., Any], *arguments: Any) -> Any:
        return work(*arguments)

    async def write(self, work: Callable[..., Any], *arguments: Any) -> Any:
        return work(*arguments)

    async def inspect(self, work: Callable[..., Any], *arguments: Any) -> Any:
        return work(*arguments)

    async def open(self, work: Callable[..., Any], *arguments: Any) -> Any:
        future = self._the_loop.create_future()
        self.waiting.append((future, lambda: work(*arguments)))
        return await future

    async def close(self, work: Callable[[], Any]) -> Any:
        return work()

    def kill(self, work: Callable[[], Any]) -> asyncio.Future[Any]:
        future = self._the_loop.create_future()
        future.set_result(work())
        return future

    def abandon(self) -> None:
        """There are none."""

    def run(self, index: int) -> None:
        future, work = self.waiting.pop(index)
        future.set_result(work())


class CountedModel(FakeModel):
    def __init__(self, backend: "CountingBackend", config: ModelConfig, number: int) -> None:
        super().__init__([])
        self.what = (config.name, number, config.max_batch_size)
        self._backend = backend
        backend.alive.append(self)

    def close(self) -> None:
        self._backend.alive.remove(self)  # not there for a second close


class CountingBackend(FakeBackend):
    """Counts open models. A version with a file `bad` cannot be opened."""

    def __init__(self) -> None:
        super().__init__()
        self.alive: list[CountedModel] = []

    def open(self, config: ModelConfig, folder: ModelFolder) -> FakeModel:
        if (folder.version / "bad").exists():
            raise Invalid("bad")
        return CountedModel(self, config, folder.number)


class Folder:
    """A model's folder as the history left it. A version must be loaded again if `size` changes."""

    def __init__(self, root: Path, name: str) -> None:
        self.path = root / name
        self.name = name
        self.stamp = 0
        self.there = False
        self.readable, self.all_versions, self.size = True, False, 1
        self.versions: dict[int, bool] = {}
        """By number, whether it can be opened."""

    def change(self, random: Random) -> None:
        kind = random.randrange(6)
        if not self.there:
            self.there, self.readable, self.versions = True, True, {1: True}
        elif kind == 0:
            self.there = False
        elif kind == 1:
            self.readable = not self.readable
        elif kind == 2:
            self.size += 1
        elif kind == 3:
            self.all_versions = not self.all_versions
        elif kind == 4:
            number = random.randint(1, 3)
            if self.versions.pop(number, None) is None:
                self.versions[number] = random.random() < 0.7
        else:
            self.versions = {number: random.random() < 0.8 for number in self.versions}
        self._write()

    def _write(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        if not self.there:
            return
        self.path.mkdir()
        policy = "all {}" if self.all_versions else "latest { num_versions: 1 }"
        text = f'backend: "identity"\nmax_batch_size: {self.size}\n{_TENSORS}version_policy {{ {policy} }}\n'
        (self.path / "config.pbtxt").write_text(text if self.readable else "nonsense {")
        for number, good in self.versions.items():
            (self.path / str(number)).mkdir()
            (self.path / str(number) / ("good" if good else "bad")).touch()

    @property
    def wanted(self) -> list[int]:
        return sorted(self.versions) if self.all_versions else sorted(self.versions)[-1:]

    @property
    def loads(self) -> bool:
        return self.there and self.readable and bool(self.wanted) and all(self.versions[n] for n in self.wanted)

    @property
    def served(self) -> list[tuple[int, int]]:
        """Numbers and sizes of the versions that a load brings into service."""
        return [(number, self.size) for number in self.wanted]


class Control:
    """One engine's worth of control over an empty repository."""

    def __init__(self, random: Random, root: Path, loop: asyncio.AbstractEventLoop) -> None:
        self.random = random
        self.folders = {name: Folder(root, name) for name in MODELS}
        self.expected: dict[str, list[tuple[int, int]]] = {name: [] for name in MODELS}
        self.backend, self.threads, self.models = CountingBackend(), HandThreads(loop), ModelTable()
        self.held: list[tuple[ModelVersion, Any]] = []
        self._loop = loop
        self._root = root
        self._manual = ManualLoop()

    def loads(self, options: ServerOptions) -> ModelLoads:
        pool = BackendPool(lambda name: self.backend)
        return ModelLoads(options, self._loop, self.models, pool, (), self._serving, threads=self.threads)

    def _serving(self, loaded: Any) -> list[ModelVersion]:
        return [ModelVersion(each, self._manual, Statistics(), lambda inference: None) for each in loaded]

    async def settle(self) -> None:
        """What can go on without a thread does."""
        for _ in range(12):
            await asyncio.sleep(0)

    def serving(self, name: str) -> list[tuple[int, int]]:
        return [(version.number, version.config.max_batch_size) for version in self.models.ready_versions(name)]

    def hold(self) -> None:
        """A request begins at what answers now."""
        name = self.random.choice(MODELS)
        versions = self.models.ready_versions(name)
        if not versions:
            with pytest.raises((NotFound, Unavailable)):
                self.models.find(name, -1)
            return
        version = self.models.find(name, -1)
        version.held += 1
        self.held.append((version, version.loaded.model))

    def release(self) -> None:
        if self.held:
            version, _ = self.held.pop(self.random.randrange(len(self.held)))
            version.held -= 1
            version._tell_idle()

    def check(self) -> None:
        """What must hold at any time."""
        alive = {id(model) for model in self.backend.alive}
        for _, model in self.held:
            assert id(model) in alive, "closed while a request is at it"
        for name in MODELS:
            versions = self.models.ready_versions(name)
            for version in versions:
                assert id(version.loaded.model) in alive, "in service and closed"
                assert self.models.find(name, version.number) is version
            if versions:
                assert self.models.find(name, -1) is versions[-1]

    async def end(self) -> None:
        """All are released and unloaded: nothing is left open."""
        while self.threads.waiting:
            self.threads.run(0)
            await self.settle()
        while self.held:
            self.release()
        for name in MODELS:
            if versions := self.models.ready_versions(name):
                self.models.retire(name, versions, lambda version: version.loaded.close())
        await self.settle()
        assert self.backend.alive == [], [model.what for model in self.backend.alive]


async def play_explicit(random: Random, root: Path, loop: asyncio.AbstractEventLoop) -> None:
    """Loads and unloads on request, several of one model at once; a folder changes while nobody loads from it."""
    control = Control(random, root, loop)
    options = ServerOptions(model_repositories=(str(root),), model_control_mode="explicit")
    repository = RepositoryControl(options, loop, control.models, control.loads(options))
    asked: list[tuple[str, bool, asyncio.Future[Any]]] = []

    def ask(name: str, loads: bool) -> None:
        future = loop.create_future()
        query = LoadModel(name) if loads else UnloadModel(name)
        repository.begin(query, future.set_result)
        asked.append((name, loads, future))

    async def answered() -> None:
        await control.settle()
        for name, loads, future in list(asked):
            if future.done():
                asked.remove((name, loads, future))
                folder = control.folders[name]
                if not loads:
                    assert future.result() is None
                    control.expected[name] = []
                elif folder.loads:
                    assert future.result() is None, future.result()
                    control.expected[name] = folder.served
                else:
                    assert isinstance(future.result(), Error), folder.__dict__
        busy = {name for name, _, _ in asked}
        for name in MODELS:
            if name not in busy:
                assert control.serving(name) == control.expected[name], (name, control.folders[name].__dict__)
        control.check()

    for _ in range(EVENTS):
        kind, name = random.randrange(10), random.choice(MODELS)
        if kind < 3:
            if name not in {busy for busy, _, _ in asked}:
                control.folders[name].change(random)
        elif kind < 6:
            ask(name, random.random() < 0.75)
        elif kind < 8 and control.threads.waiting:
            control.threads.run(random.randrange(len(control.threads.waiting)))
        elif random.random() < 0.5:
            control.hold()
        else:
            control.release()
        await answered()
    while asked:
        assert control.threads.waiting, f"nothing runs and nobody answers: {asked}"
        control.threads.run(0)
        await answered()
    for name in MODELS:
        record = control.models.get(name)
        for number, version in record.versions.items() if record is not None else ():
            serves = number in [n for n, _ in control.expected[name]]
            assert (version.state is VersionState.READY) == serves
            assert serves or version.reason or version.state is VersionState.UNLOADING
    await control.end()


async def play_poll(random: Random, root: Path, loop: asyncio.AbstractEventLoop) -> None:
    """Folders change at any time, also while they are loaded; in the end what is there is served."""
    control = Control(random, root, loop)
    options = ServerOptions(
        model_repositories=(str(root),), model_control_mode="poll", repository_poll_secs=1, settle_secs=SETTLE
    )
    loads, now = control.loads(options), 0
    locks = ModelLocks(loads.slots)

    async def look() -> Any:
        return scan([str(root)])

    poll = RepositoryPoll(options, loop, control.models, loads, locks, look, clock=lambda: now, wall=lambda: 0)
    was: dict[str, list[list[tuple[int, int]]]] = {name: [[]] for name in MODELS}

    def check() -> None:
        control.check()
        for name in MODELS:
            assert control.serving(name) in was[name], f"{control.serving(name)} was never there: {was[name]}"

    async def round_() -> None:
        nonlocal now
        now += NS
        await poll.poll()
        await control.settle()

    for _ in range(EVENTS):
        kind, name = random.randrange(10), random.choice(MODELS)
        if kind < 3:
            control.folders[name].change(random)
            was[name].append(control.folders[name].served if control.folders[name].there else [])
        elif kind < 7:
            await round_()
        elif kind < 9 and control.threads.waiting:
            control.threads.run(random.randrange(len(control.threads.waiting)))
        elif random.random() < 0.5:
            control.hold()
        else:
            control.release()
        await control.settle()
        check()
    for _ in range(4 * SETTLE):
        await round_()
        while control.threads.waiting:
            control.threads.run(0)
            await control.settle()
        check()
    for name, folder in control.folders.items():
        if not folder.there:
            assert control.serving(name) == []
        elif folder.loads:
            assert control.serving(name) == folder.served, folder.__dict__
    await control.end()
