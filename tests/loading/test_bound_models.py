"""Models of the program, which have no folder: an engine loads, replaces and unloads them like any other."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from halimede.backends.function.functions import Functions
from halimede.engine.engine import Engine
from halimede.engine_port import RepositoryIndex
from halimede.errors import Error
from halimede.models.repository import NOWHERE, BoundModel, Catalog, FoundModel
from halimede.options import ServerOptions
from halimede.requests import InferResponse
from halimede.tensors import array_of
from tests.engine.engines import STOP_SECONDS, ask, infer, options_for, request_of, run

CONFIG = json.dumps(
    {
        "name": "m",
        "backend": "function",
        "max_batch_size": 4,
        "input": [{"name": "INPUT0", "data_type": "TYPE_INT32", "dims": [-1]}],
        "output": [{"name": "OUTPUT0", "data_type": "TYPE_INT32", "dims": [-1]}],
        "instance_group": [{"kind": "KIND_CPU", "count": 1}],
    }
)
IN_A_FOLDER = 'backend: "identity" input { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] }' + (
    ' output { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] } instance_group { kind: KIND_CPU }'
)


def model(stamp: int, factor: int) -> FoundModel:
    functions = Functions((lambda **inputs: inputs["INPUT0"] * factor,))
    return FoundModel("m", NOWHERE / "m", CONFIG, bound=BoundModel(functions, stamp))


@asynccontextmanager
async def running(bound: list[FoundModel], options: ServerOptions) -> AsyncIterator[tuple[Engine, bool]]:
    engine = Engine(options, asyncio.get_running_loop(), bound=lambda: bound)
    started = await engine.start()
    try:
        yield engine, started
    finally:
        assert await engine.stop(STOP_SECONDS)


async def answer_of(engine: Engine) -> Any:
    answer = (await infer(engine, request_of(3))).only
    assert isinstance(answer, InferResponse), answer
    return array_of(answer.outputs[0]).tolist()


def test_bound_model_is_loaded_at_the_start_and_replaced_by_another_stamp() -> None:
    async def scenario() -> None:
        bound = [model(1, 2)]
        async with running(bound, ServerOptions()) as (engine, started):
            assert started
            assert await answer_of(engine) == [[6]]
            version = engine.models.find("m", -1)
            await engine.load("m")
            assert engine.models.find("m", -1) is version, "a load without a change opened it again"
            bound[:] = [model(2, 5)]
            await engine.load("m")
            assert await answer_of(engine) == [[15]]

    run(scenario)


def test_bound_model_is_unloaded_and_forgotten() -> None:
    async def scenario() -> None:
        bound = [model(1, 2)]
        async with running(bound, ServerOptions()) as (engine, _):
            bound.clear()
            await engine.unload("m")
            with pytest.raises(Error):
                engine.models.find("m", -1)
            assert await ask(engine, RepositoryIndex()) == []
            with pytest.raises(Error, match="failed to poll from model repository"):
                await engine.load("m")

    run(scenario)


def test_name_in_a_repository_makes_both_unusable(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running([model(1, 2)], options_for(tmp_path, {"m": IN_A_FOLDER})) as (engine, started):
            assert not started
            record = engine.models.get("m")
            assert record is not None
            assert record.reason == "model appears in two or more repositories"

    run(scenario)


def test_configuration_that_names_a_file_reads_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even in the working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "labels.txt").write_text("a")
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "labels.txt").write_text("a")
    config = json.loads(CONFIG)
    config["output"][0]["label_filename"] = "labels.txt"
    found = FoundModel("m", NOWHERE / "m", json.dumps(config), bound=model(1, 2).bound)

    async def scenario() -> None:
        async with running([found], ServerOptions()) as (engine, started):
            assert not started
            record = engine.models.get("m")
            assert record is not None
            assert "labels.txt: Not a directory" in record.versions[1].reason

    run(scenario)


def test_function_of_a_folder_is_refused(tmp_path: Path) -> None:
    text = IN_A_FOLDER.replace("identity", "function")

    async def scenario() -> None:
        async with running([], options_for(tmp_path, {"m": text})) as (engine, started):
            assert not started
            record = engine.models.get("m")
            assert record is not None
            assert "the backend 'function' has no models in files" in record.versions[1].reason

    run(scenario)


def test_catalog_joined_with_bound_models() -> None:
    folder = FoundModel("folder", Path("folder"))
    other = FoundModel("m", Path("m"))
    joined = Catalog({"folder": folder}, ("twice",)).joined([model(1, 2)])
    assert (sorted(joined.models), joined.duplicates) == (["folder", "m"], ("twice",))
    both = Catalog({"m": other, "folder": folder}).joined([model(1, 2)])
    assert (sorted(both.models), both.duplicates) == (["folder"], ("m",))


def test_stamp_is_the_fingerprint() -> None:
    assert model(1, 2).fingerprint() == model(1, 3).fingerprint() != model(2, 2).fingerprint()
    assert model(1, 2).version_names() == ["1"]
