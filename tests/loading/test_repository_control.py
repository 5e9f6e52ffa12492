"""Loads and unloads on request: the engine in explicit mode with the real identity backend, reached directly and
through a serialising port; and the control alone, with a backend that blocks.
"""

import asyncio
import json
import os
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

from halimede.backends.api import Batch, ModelFolder, Responses
from halimede.config import ModelConfig
from halimede.engine.engine import Engine, EngineLoop
from halimede.engine_port import (
    EnginePort,
    IndexEntry,
    LoadModel,
    ModelConfiguration,
    ModelStatistics,
    Query,
    RepositoryIndex,
    ServerReady,
    UnloadModel,
)
from halimede.errors import Error, Internal, Invalid, Unavailable
from halimede.loading.concurrency import CLOSING_THREADS, LoadThreads
from halimede.loading.model_loads import ModelLoads
from halimede.loading.repository_control import RepositoryControl
from halimede.measurement.statistics import Statistics
from halimede.models.backend_pool import BackendPool
from halimede.models.lifecycle import ModelTable
from halimede.models.loader import LoadedVersion
from halimede.models.version import ModelVersion
from halimede.options import ServerOptions
from halimede.scheduling.rate_limiter import RateLimiter, Slot
from tests.engine.engines import (
    HELD,
    IDENTITY,
    PATIENCE,
    STOP_SECONDS,
    Awaited,
    ask,
    infer,
    options_for,
    request_of,
    run,
    running,
)
from tests.fakes import SerializingPort
from tests.models.fakes import FakeBackend, FakeModel

A = TypeVar("A")

EngineAccess = Callable[[Engine], EnginePort]
JSON_CONFIG = json.dumps(
    {
        "backend": "identity",
        "maxBatchSize": 2,
        "input": [{"name": "INPUT0", "data_type": "type_int32", "dims": [-1]}],
        "output": [{"name": "OUTPUT0", "data_type": "TYPE_INT32", "dims": ["-1"]}],
        "instance_group": [{"kind": "kind_cpu"}],
    }
)


@pytest.fixture(params=["direct", "serialised"])
def access(request: pytest.FixtureRequest) -> EngineAccess:
    """How a front end reaches the engine."""
    if request.param == "direct":
        return lambda engine: engine
    return lambda engine: SerializingPort(engine, asyncio.get_running_loop())


def explicit(root: Path, *loaded: str, models: dict[str, str] | None = None, code: bool = False) -> ServerOptions:
    return options_for(
        root,
        models or {"m": IDENTITY, "n": IDENTITY},
        model_control_mode="explicit",
        load_models=loaded,
        allow_code_upload=code,
    )


def write(root: Path, text: str, name: str = "m") -> None:
    (root / name / "config.pbtxt").write_text(text)


def refusal(answer: object) -> tuple[type, str]:
    assert isinstance(answer, Error), answer
    return type(answer), str(answer)


async def control(port: EnginePort, query: LoadModel | UnloadModel) -> Error | None:
    return await ask(port, query)


async def states(port: EnginePort) -> dict[tuple[str, int | None], str]:
    entries = await ask(port, RepositoryIndex())
    assert not isinstance(entries, Error)
    return {(e.name, e.version): e.reason or e.state for e in entries}


async def until(port: EnginePort, key: tuple[str, int | None], state: str) -> None:
    """Waits until the index says so. `run` bounds the wait."""
    while (await states(port)).get(key) != state:
        await asyncio.sleep(0)


@pytest.mark.rows("R10")
def test_start_in_explicit_mode_loads_the_named_models(tmp_path: Path, access: EngineAccess) -> None:
    async def scenario() -> None:
        async with running(explicit(tmp_path, "m")) as engine:
            assert await states(access(engine)) == {("m", 1): "READY", ("n", None): ""}
            assert await ask(access(engine), ServerReady()) is True

    run(scenario)


def test_start_in_explicit_mode_loads_everything_for_a_star(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(explicit(tmp_path, "*")) as engine:
            assert await states(engine) == {("m", 1): "READY", ("n", 1): "READY"}

    run(scenario)


def test_configuration_that_is_a_pipe_is_refused_without_blocking(tmp_path: Path) -> None:
    async def scenario() -> None:
        options = options_for(tmp_path, {"m": IDENTITY, "n": IDENTITY})
        (tmp_path / "n" / "config.pbtxt").unlink()
        os.mkfifo(tmp_path / "n" / "config.pbtxt")
        engine = Engine(options, asyncio.get_running_loop())
        assert await engine.start() is False
        reason = f"Internal: failed to open text file for read {tmp_path}/n/config.pbtxt: it is not a regular file"
        assert await states(engine) == {("m", 1): "READY", ("n", None): reason}
        assert await engine.stop(STOP_SECONDS)

    run(scenario)


def test_start_in_explicit_mode_fails_for_a_name_that_is_not_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        engine = Engine(explicit(tmp_path, "nope"), asyncio.get_running_loop())
        assert await engine.start() is False
        assert "failed to poll model 'nope': model not found in any model repository." in caplog.text
        assert await states(engine) == {("m", None): "", ("n", None): ""}
        assert await engine.stop(STOP_SECONDS)

    run(scenario)


@pytest.mark.parametrize("query", [LoadModel("m"), UnloadModel("m"), LoadModel("")])
def test_control_is_refused_without_explicit_mode(tmp_path: Path, query: LoadModel | UnloadModel) -> None:
    async def scenario() -> None:
        async with running(options_for(tmp_path, {"m": IDENTITY})) as engine:
            text = "explicit model load / unload is not allowed if polling is enabled"
            assert refusal(await control(engine, query)) == (Unavailable, text)

    run(scenario)


def test_model_is_loaded_and_unloaded_on_request(tmp_path: Path, access: EngineAccess) -> None:
    async def scenario() -> None:
        async with running(explicit(tmp_path)) as engine:
            port = access(engine)
            assert await control(port, LoadModel("m")) is None
            assert (await infer(port, request_of(1))).response.model_version == 1
            assert await control(port, UnloadModel("m")) is None
            assert (await infer(port, request_of(1))).error.message.endswith("has no available versions")
            await until(port, ("m", 1), "unloaded")
            assert await ask(port, ServerReady()) is True
            assert await control(port, UnloadModel("nobody")) is None

    run(scenario)


def test_index_of_ready_models(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(explicit(tmp_path, "n")) as engine:
            assert await ask(engine, RepositoryIndex(ready=True)) == [IndexEntry("n", 1, "READY")]

    run(scenario)


@pytest.mark.parametrize(
    ("name", "kind", "text"),
    [
        ("", Invalid, "Model name cannot be empty. Please enter a valid name to deploy."),
        ("..", Invalid, "invalid model name '..', model name must not contain path traversal characters"),
        (" \t", Invalid, "Model name cannot be empty. Please enter a valid name to deploy."),
        (" ..", Invalid, "invalid model name ' ..', model name must not contain path traversal characters"),
        ("a/b", Invalid, "invalid model name 'a/b', model name must not contain path traversal characters"),
        ("n" * 256, Invalid, f"invalid model name '{'n' * 64}...', it is longer than 255 bytes"),
        ("é" * 128, Invalid, f"invalid model name '{'é' * 64}...', it is longer than 255 bytes"),
        ("n" * 255, Internal, f"failed to load '{'n' * 255}', failed to poll from model repository"),
        ("nope", Internal, "failed to load 'nope', failed to poll from model repository"),
    ],
)
def test_load_of_an_invalid_name_is_refused(tmp_path: Path, name: str, kind: type[Error], text: str) -> None:
    async def scenario() -> None:
        async with running(explicit(tmp_path)) as engine:
            assert refusal(await control(engine, LoadModel(name))) == (kind, text)
            assert ("nope", None) not in await states(engine)

    run(scenario)


def test_load_of_a_model_in_two_repositories_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        options_for(tmp_path / "b", {"m": IDENTITY})
        options_for(tmp_path / "a", {"m": IDENTITY})
        options = ServerOptions(
            model_repositories=(str(tmp_path / "a"), str(tmp_path / "b")), model_control_mode="explicit"
        )
        async with running(options) as engine:
            assert refusal(await control(engine, LoadModel("m")))[0] is Internal
            assert await states(engine) == {("m", None): "model appears in two or more repositories"}

    run(scenario)


def test_load_of_an_unchanged_model_changes_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(explicit(tmp_path, "m")) as engine:
            before = engine.models.find("m", -1)
            (tmp_path / "m" / "1" / "__pycache__").mkdir()
            assert await control(engine, LoadModel("m")) is None
            assert engine.models.find("m", -1) is before

    run(scenario)


class Dead:
    """An instance whose worker is gone."""

    healthy = False

    def execute(self, batch: Batch, responses: Responses) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Nothing to give back."""


def test_load_of_an_unchanged_model_that_is_not_healthy_loads_it_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(explicit(tmp_path, "m")) as engine:
            before = engine.models.find("m", -1)
            before.instances[:] = [Dead()]
            assert await control(engine, LoadModel("m")) is None
            after = engine.models.find("m", -1)
            assert after is not before
            assert after.healthy

    run(scenario)


def test_load_of_a_changed_model_serves_on_while_it_loads(tmp_path: Path) -> None:
    """The old version finishes the requests that have begun; requests after the switch reach the new one (R11)."""

    async def scenario() -> None:
        async with running(explicit(tmp_path, "m", models={"m": HELD})) as engine:
            slow = Awaited()
            engine.infer(request_of(1), slow)
            write(tmp_path, IDENTITY.replace("max_batch_size: 4", "max_batch_size: 7"))
            assert await control(engine, LoadModel("m")) is None
            config = await ask(engine, ModelConfiguration("m"))
            assert not isinstance(config, Error)
            assert '"max_batch_size":7' in config.json
            assert (await infer(engine, request_of(2, rows=7))).response.id == "q"
            assert (await slow.answered()).response.id == "q"
            [counts] = await ask(engine, ModelStatistics("m"))  # type: ignore[misc]  # an Error would fail here
            assert counts.inference_count == 7

    run(scenario)


def test_failed_load_leaves_the_serving_version(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(explicit(tmp_path, "m")) as engine:
            before = engine.models.find("m", -1)
            write(tmp_path, IDENTITY.replace("identity", "nope"))
            kind, text = refusal(await control(engine, LoadModel("m")))
            assert kind is Invalid
            assert text.startswith("load failed for model 'm': version 1 is at UNAVAILABLE state: Invalid argument: ")
            assert text.endswith(";\n")
            assert engine.models.find("m", -1) is before
            assert (await states(engine))["m", 1] == "READY"
            write(tmp_path, IDENTITY)
            assert await control(engine, LoadModel("m")) is None

    run(scenario)


def test_versions_come_together_or_not_at_all(tmp_path: Path) -> None:
    async def scenario() -> None:
        text = IDENTITY.replace("identity", "onnxruntime") + "version_policy { all {} }"
        options = explicit(tmp_path, models={"m": text})
        (tmp_path / "m" / "2").mkdir()
        async with running(options) as engine:
            _, words = refusal(await control(engine, LoadModel("m")))
            assert words.count(" is at UNAVAILABLE state: ") == 2
            assert words.index("version 1 ") < words.index("version 2 ")

    run(scenario)


def test_configuration_of_a_load_replaces_the_file_until_a_file_changes(tmp_path: Path, access: EngineAccess) -> None:
    """Enums may have any case and fields both spellings. A load without a configuration keeps it, until the model's
    files change or the model is unloaded (H113)."""

    async def sizes(port: EnginePort) -> int:
        config = await ask(port, ModelConfiguration("m"))
        assert not isinstance(config, Error)
        return int(json.loads(config.json)["max_batch_size"])

    async def scenario() -> None:
        async with running(explicit(tmp_path, "m")) as engine:
            port = access(engine)
            assert await control(port, LoadModel("m", JSON_CONFIG)) is None
            assert await sizes(port) == 2
            [before] = engine.models.ready_versions("m")
            assert await control(port, LoadModel("m")) is None
            assert await sizes(port) == 2
            assert engine.models.ready_versions("m") == [before], "nothing was loaded"
            assert await control(port, LoadModel("m", '{"backend":"nope"}')) is not None
            assert await control(port, LoadModel("m")) is None
            assert await sizes(port) == 2
            (tmp_path / "m" / "1" / "new").touch()
            assert await control(port, LoadModel("m")) is None
            assert await sizes(port) == 4
            assert await control(port, LoadModel("m", JSON_CONFIG)) is None
            assert await control(port, UnloadModel("m")) is None
            assert await control(port, LoadModel("m")) is None
            assert await sizes(port) == 4

    run(scenario)


def test_configuration_of_a_load_needs_no_file_at_the_next_load(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(explicit(tmp_path, "m")) as engine:
            (tmp_path / "m" / "config.pbtxt").unlink()
            assert await control(engine, LoadModel("m", JSON_CONFIG)) is None
            assert await control(engine, LoadModel("m")) is None
            assert (await states(engine))["m", 1] == "READY"

    run(scenario)


@pytest.mark.parametrize("config", ["", "{", "[]", '{"x":1}', '{"name":"other"}', "{" * 5000])
def test_invalid_configuration_of_a_load_is_refused(tmp_path: Path, config: str) -> None:
    async def scenario() -> None:
        async with running(explicit(tmp_path, "m")) as engine:
            text = "failed to load 'm', failed to poll from model repository"
            assert refusal(await control(engine, LoadModel("m", config))) == (Internal, text)
            assert (await states(engine))["m", 1] == "READY"

    run(scenario)


def test_files_of_a_load_are_a_model_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, access: EngineAccess
) -> None:
    """The repository does not count, and the files are removed with the model (H114)."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()

    async def scenario() -> None:
        async with running(explicit(tmp_path / "models")) as engine:
            port = access(engine)
            files = (("3/data.bin", b"\x00\x01"), ("labels.txt", b"one\n"))
            assert await control(port, LoadModel("sent", JSON_CONFIG, files)) is None
            [folder] = (tmp_path / "temporary").iterdir()
            assert (folder / "sent" / "3" / "data.bin").read_bytes() == b"\x00\x01"
            assert (await infer(port, request_of(1, model="sent"))).response.model_version == 3
            assert await control(port, UnloadModel("sent")) is None
            while list((tmp_path / "temporary").iterdir()):
                await asyncio.sleep(0)

    run(scenario)


@pytest.mark.parametrize(
    ("config", "path"),
    [(None, "1/m"), ("{", "1/m"), *((JSON_CONFIG, path) for path in ("../m", "/../m", "1/../../m", "", "a\0b"))],
)
def test_invalid_files_of_a_load_are_refused_and_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: str | None, path: str
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()

    async def scenario() -> None:
        async with running(explicit(tmp_path / "models")) as engine:
            text = "failed to load 'sent', failed to poll from model repository"
            assert refusal(await control(engine, LoadModel("sent", config, ((path, b"x"),)))) == (Internal, text)
            assert list((tmp_path / "temporary").iterdir()) == []

    run(scenario)


@pytest.mark.parametrize(
    ("path", "shown", "fault"),
    [
        ("A" * 256, "A" * 256, "a name in it is longer than 255 bytes"),
        ("A" * 100_000, f"{'A' * 256}...", "a name in it is longer than 255 bytes"),
        (f"1/{'A' * 256}", f"1/{'A' * 254}...", "a name in it is longer than 255 bytes"),
        ("\u00e9" * 128, "\u00e9" * 128, "a name in it is longer than 255 bytes"),
        ("a/" * 510 + "model", f"{'a/' * 128}...", "it is longer than 1024 bytes"),
    ],
)
def test_file_path_of_a_load_that_is_too_long_is_named_to_the_client(
    tmp_path: Path, path: str, shown: str, fault: str
) -> None:
    """(H114) The text is short enough for the headers of gRPC."""

    async def scenario() -> None:
        async with running(explicit(tmp_path)) as engine:
            query = LoadModel("sent", JSON_CONFIG, (("1/m", b"x"), (path, b"x")))
            assert refusal(await control(engine, query)) == (Invalid, f"Invalid file path 'file:{shown}': {fault}")

    run(scenario)


@pytest.mark.parametrize("path", ["A" * 255, f"1/{'A' * 255}/model", "a/" * 509 + "model"])
def test_file_of_a_load_may_have_a_long_path(tmp_path: Path, path: str) -> None:
    async def scenario() -> None:
        async with running(explicit(tmp_path)) as engine:
            query = LoadModel("sent", JSON_CONFIG, (("1/m", b"x"), (path, b"x")))
            assert await control(engine, query) is None

    run(scenario)


def test_loads_of_one_model_wait_for_each_other(tmp_path: Path) -> None:
    """The state after the last request is what remains (R17)."""

    async def scenario() -> None:
        async with running(explicit(tmp_path)) as engine:
            asked = [
                control(engine, query) for query in (LoadModel("m"), UnloadModel("m"), LoadModel("m"), LoadModel("n"))
            ]
            assert await asyncio.gather(*asked) == [None] * 4
            assert await states(engine) == {("m", 1): "READY", ("n", 1): "READY"}

    run(scenario)


def test_load_under_way_at_the_end_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(explicit(tmp_path)) as engine:
            loading = asyncio.ensure_future(control(engine, LoadModel("m")))
            await asyncio.sleep(0)
            assert await engine.stop(STOP_SECONDS)
            assert isinstance(await loading, Error)
            assert isinstance(await control(engine, LoadModel("n")), Unavailable)

    run(scenario)


# The control alone.


class Gated(FakeBackend):
    """Models open when `opening` is set, and those of `stuck` versions close when `closing` is, as it is when the
    backend itself is closed."""

    def __init__(self, stuck: frozenset[int] = frozenset()) -> None:
        super().__init__()
        self.opening, self.closing = threading.Event(), threading.Event()
        self.opening.set()
        self._stuck = stuck

    def open(self, config: ModelConfig, folder: ModelFolder) -> FakeModel:
        model = GatedModel(self.log, self.closing) if folder.number in self._stuck else FakeModel(self.log)
        self.opened.append((config, folder))
        assert self.opening.wait(PATIENCE)
        return model

    def close(self) -> None:
        self.closing.set()


class GatedModel(FakeModel):
    def __init__(self, log: list[str], closing: threading.Event) -> None:
        super().__init__(log)
        self._closing = closing

    def close(self) -> None:
        assert self._closing.wait(PATIENCE)


FAKE = IDENTITY
FAKE_JSON = JSON_CONFIG.replace('"identity"', '"identity", "version_policy": {"all": {}}')


class Controlled:
    """A control over its own table, with one backend under every name."""

    def __init__(
        self,
        options: ServerOptions,
        backend: FakeBackend,
        limiter: RateLimiter | None = None,
        threads: LoadThreads | None = None,
    ) -> None:
        loop = asyncio.get_running_loop()
        engine_loop = EngineLoop(loop)

        def serving(loaded: Sequence[LoadedVersion]) -> list[ModelVersion]:
            return [ModelVersion(each, engine_loop, Statistics(), lambda inference: None) for each in loaded]

        pool = BackendPool(lambda name: backend)
        self.models = ModelTable()
        loads = ModelLoads(options, loop, self.models, pool, (), serving, limiter, threads)
        self.control = RepositoryControl(options, loop, self.models, loads)

    def ask(self, query: Query[A]) -> asyncio.Future[A | Error]:
        future: asyncio.Future[A | Error] = asyncio.get_running_loop().create_future()
        self.control.begin(query, future.set_result)
        return future

    async def end(self) -> None:
        assert await self.control.stop(soon(STOP_SECONDS))
        self.control.abandon()


def soon(seconds: float) -> float:
    """The loop's time then."""
    return asyncio.get_running_loop().time() + seconds


async def until_true(condition: Callable[[], bool]) -> None:
    """`run` bounds the wait."""
    while not condition():
        await asyncio.sleep(0)


def test_load_learns_that_an_unload_waits_for_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        backend = Gated()
        backend.opening.clear()
        options = options_for(tmp_path, {"m": FAKE}, model_control_mode="explicit")
        controlled = Controlled(options, backend)
        loading = controlled.ask(LoadModel("m"))
        await until_true(lambda: bool(backend.opened))
        [(_, folder)] = backend.opened
        assert not folder.unwanted()
        unloading = [controlled.ask(UnloadModel("m")) for _ in range(2)]
        await until_true(folder.unwanted)
        backend.opening.set()
        assert [await each for each in (loading, *unloading)] == [None] * 3
        assert not folder.unwanted()  # a load after that goes on
        await controlled.end()

    run(scenario)


def test_index_does_not_wait_for_models_that_load(tmp_path: Path) -> None:
    async def scenario() -> None:
        backend = Gated()
        backend.opening.clear()
        options = options_for(tmp_path, {"m": FAKE}, model_control_mode="explicit", model_load_thread_count=1)
        controlled = Controlled(options, backend)
        loading = controlled.ask(LoadModel("m"))
        await until_true(lambda: bool(backend.opened))
        assert await controlled.ask(RepositoryIndex()) == [IndexEntry("m", 1, "LOADING")]
        backend.opening.set()
        assert await loading is None
        await controlled.end()

    run(scenario)


class BrokenLimiter(RateLimiter):
    """A rate limiter with a bug."""

    def register(self, slots: Sequence[Slot]) -> None:
        raise RuntimeError("broken limiter")


def test_version_that_cannot_be_connected_is_closed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        backend = FakeBackend()
        limiter = BrokenLimiter({}, asyncio.get_running_loop().call_soon)
        controlled = Controlled(options_for(tmp_path, {"m": FAKE}, model_control_mode="explicit"), backend, limiter)
        answer = await controlled.ask(LoadModel("m"))
        _, text = refusal(answer)
        assert "RuntimeError: broken limiter" in text
        reason = "Internal: RuntimeError: broken limiter"
        assert await controlled.ask(RepositoryIndex()) == [IndexEntry("m", 1, "UNAVAILABLE", reason)]
        await until_true(lambda: "close model" in backend.log)
        await controlled.end()

    run(scenario)
    assert "model 'm' version 1: unexpected error when it was put into service; it is closed" in caplog.text


class NoThreads(LoadThreads):
    """The system refuses a thread for a load."""

    async def open(self, work: Callable[..., A], *arguments: object) -> A:
        raise RuntimeError("can't start new thread")


def test_version_for_whose_load_there_is_no_thread_is_not_shown_as_loading(tmp_path: Path) -> None:
    async def scenario() -> None:
        backend, threads = FakeBackend(), NoThreads(asyncio.get_running_loop())
        options = options_for(tmp_path, {"m": FAKE}, model_control_mode="explicit")
        controlled = Controlled(options, backend, threads=threads)
        answer = await controlled.ask(LoadModel("m"))
        assert isinstance(answer, Internal)
        reason = "Internal: it could not be published"
        assert await controlled.ask(RepositoryIndex()) == [IndexEntry("m", 1, "UNAVAILABLE", reason)]
        await controlled.end()

    run(scenario)


class GatedThreads(LoadThreads):
    """A load is under way once `reached` is set, until `gate` is set. Then it raises `error`."""

    error: Exception | None = None

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.reached, self.gate = asyncio.Event(), asyncio.Event()
        self.gate.set()

    async def open(self, work: Callable[..., A], *arguments: object) -> A:
        self.reached.set()
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return await super().open(work, *arguments)


PIPELINE = """platform: "ensemble" max_batch_size: 2
input { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] }
output { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] }
ensemble_scheduling { step { model_name: "m" model_version: -1
  input_map { key: "INPUT0" value: "INPUT0" } output_map { key: "OUTPUT0" value: "OUTPUT0" } } }"""


@pytest.mark.rows("R15", "R17")
@pytest.mark.parametrize("fails", [False, True])
def test_unload_with_dependents_waits_for_a_load_of_a_member(tmp_path: Path, fails: bool) -> None:
    async def scenario() -> None:
        backend, threads = FakeBackend(), GatedThreads(asyncio.get_running_loop())
        options = options_for(tmp_path, {"m": FAKE, "e": PIPELINE}, model_control_mode="explicit")
        controlled = Controlled(options, backend, threads=threads)
        assert await controlled.ask(LoadModel("e")) is None
        member = controlled.models.find("m", -1)
        # Only its instances change, so the version stays in service.
        write(tmp_path, FAKE.replace("KIND_CPU", "KIND_CPU count: 2"))
        threads.error = Internal("no") if fails else None
        threads.reached.clear()
        threads.gate.clear()
        loading = controlled.ask(LoadModel("m"))
        await threads.reached.wait()
        unloading = controlled.ask(UnloadModel("e", dependents=True))
        await until_true(lambda: not controlled.models.ready_versions("e"))
        threads.gate.set()
        assert (await loading is None) is not fails
        assert await unloading is None
        # The load made the member one that a client asked for.
        assert controlled.models.ready_versions("m") == ([] if fails else [member])
        assert fails or not any(line.startswith("close") for line in backend.log)
        await controlled.end()

    run(scenario)


def test_stop_kills_all_models_that_do_not_close(tmp_path: Path) -> None:
    """There are more of them than closing threads, and a killed model closes."""

    async def scenario() -> None:
        names = [f"m{i}" for i in range(CLOSING_THREADS + 1)]
        backend = Gated(frozenset({1}))
        controlled = Controlled(options_for(tmp_path, dict.fromkeys(names, FAKE)), backend)
        assert await controlled.control.start()
        assert not backend.closing.is_set()
        assert await controlled.control.stop(soon(0.01), STOP_SECONDS)
        controlled.control.abandon()

    run(scenario)


def test_model_that_never_closes_is_not_reported_as_unloaded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    backend = Gated(frozenset({1}))
    backend.close = lambda: None  # type: ignore[method-assign] # what a kill does not end

    async def scenario() -> None:
        caplog.set_level("INFO", "halimede")
        controlled = Controlled(options_for(tmp_path, {"m": FAKE}), backend)
        assert await controlled.control.start()
        assert not await controlled.control.stop(soon(0.01), 0.01)
        controlled.control.abandon()

    run(scenario)  # its end breaks off what is still waited for
    backend.closing.set()
    assert "successfully loaded 'm'" in caplog.text
    assert "successfully unloaded" not in caplog.text


def test_stop_closes_the_model_of_a_load_under_way(tmp_path: Path) -> None:
    async def scenario() -> None:
        backend = Gated()
        backend.opening.clear()
        controlled = Controlled(options_for(tmp_path, {"m": FAKE}, model_control_mode="explicit"), backend)
        loading = controlled.ask(LoadModel("m"))
        await until_true(lambda: bool(backend.opened))
        stopping = asyncio.ensure_future(controlled.control.stop(soon(STOP_SECONDS)))
        await until_true(backend.closing.is_set)
        backend.opening.set()
        assert await stopping
        assert isinstance(await loading, Error)
        assert "close model" in backend.log
        controlled.control.abandon()

    run(scenario)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the files of loads go."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_files_of_a_load_that_never_ends_are_removed_at_the_end(tmp_path: Path, temporary: Path) -> None:
    async def scenario() -> None:
        backend = Gated()
        backend.opening.clear()
        controlled = Controlled(explicit(tmp_path / "models"), backend)
        controlled.ask(LoadModel("sent", FAKE_JSON, (("1/data.bin", b"x"),)))
        await until_true(lambda: bool(backend.opened))
        assert len(list(temporary.iterdir())) == 1
        controlled.control.abandon()
        assert list(temporary.iterdir()) == []
        backend.opening.set()

    run(scenario)


def test_files_of_a_load_stay_until_the_last_version_is_closed(tmp_path: Path, temporary: Path) -> None:
    async def scenario() -> None:
        backend = Gated(stuck=frozenset({1}))
        controlled = Controlled(explicit(tmp_path / "models"), backend)
        files = (("1/data.bin", b"x"), ("2/data.bin", b"x"))
        assert await controlled.ask(LoadModel("sent", FAKE_JSON, files)) is None
        assert await controlled.ask(UnloadModel("sent")) is None
        await until_true(lambda: "close model" in backend.log)
        for _ in range(20):  # the other threads have their turn
            assert await controlled.ask(RepositoryIndex())
        assert len(list(temporary.iterdir())) == 1
        backend.closing.set()
        await until_true(lambda: not list(temporary.iterdir()))
        await controlled.end()

    run(scenario)


def test_configuration_that_leads_out_of_the_version_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = JSON_CONFIG.replace('"identity"', '"identity", "default_model_filename": "../../other.py"')
        async with running(explicit(tmp_path, "m")) as engine:
            text = "failed to load 'm', failed to poll from model repository"
            assert refusal(await control(engine, LoadModel("m", config))) == (Internal, text)

    run(scenario)
