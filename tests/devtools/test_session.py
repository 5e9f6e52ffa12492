"""A model without a server: loading, answers, and the end."""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from halimede.config import ModelConfig
from halimede.devtools.inputs import requests_of
from halimede.devtools.session import Session
from halimede.errors import Error, Invalid
from halimede.options import ServerOptions
from halimede.requests import InferRequest, InferResponse
from halimede.tensors import array_of
from tests.engine.engines import IDENTITY, run
from tests.models.fakes import repository

CLOSE_SECONDS = 10.0
_ENSEMBLE = """
platform: "ensemble"
max_batch_size: 4
input { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] }
output { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] }
ensemble_scheduling {
  step [ { model_name: "a" model_version: -1
           input_map { key: "INPUT0" value: "INPUT0" } output_map { key: "OUTPUT0" value: "OUTPUT0" } } ]
}
"""


def request_of(words: Sequence[str], config: ModelConfig, version: int) -> InferRequest:
    [request] = requests_of(words, config, version)
    return request


async def opened(session: Session) -> ModelConfig:
    await session.start()
    return await session.load()


def test_session_answers_and_leaves_nothing(tmp_path: Path) -> None:
    folder = repository(tmp_path, {"m": IDENTITY, "other": IDENTITY}) / "m"

    async def scenario() -> None:
        session = Session(folder, -1, ServerOptions())
        config = await opened(session)
        [answer] = await session.infer(request_of(["INPUT0=[1,2]"], config, -1))
        assert isinstance(answer, InferResponse)
        assert array_of(answer.outputs[0]).tolist() == [[1, 2]]
        [refused] = await session.infer(request_of(["INPUT0=[[1],[2],[3],[4],[5]]"], config, -1))
        assert isinstance(refused, Error)
        assert await session.close(CLOSE_SECONDS)

    run(scenario)


def test_all_or_the_named_models_are_loaded(tmp_path: Path) -> None:
    folder = repository(tmp_path / "own", {"m": IDENTITY}) / "m"
    others = repository(tmp_path / "others", {"a": IDENTITY, "broken": "backend: 'none'"})

    async def open_with(*named: str) -> None:
        session = Session(folder, -1, ServerOptions(model_repositories=(str(others),), load_models=named))
        try:
            await opened(session)
        finally:
            assert await session.close(CLOSE_SECONDS)

    run(lambda: open_with("a"))
    with pytest.raises(Invalid, match="some of the models that this one may call could not be loaded"):
        run(open_with)


def test_model_hides_one_of_its_name_in_a_repository(tmp_path: Path) -> None:
    """And with a repository, those that lie beside it are not looked at."""
    folder = repository(tmp_path / "own", {"m": IDENTITY, "a": IDENTITY}) / "m"
    (folder / "2").mkdir()
    others = repository(tmp_path / "others", {"m": IDENTITY, "a": IDENTITY})
    again = repository(tmp_path / "again", {"m": IDENTITY})

    async def scenario() -> None:
        options = ServerOptions(model_repositories=(str(others), str(again)))
        session = Session(folder, -1, options)
        config = await opened(session)
        [answer] = await session.infer(request_of(["INPUT0=1"], config, -1))
        assert isinstance(answer, InferResponse)
        assert answer.model_version == 2
        assert await session.close(CLOSE_SECONDS)

    run(scenario)


def test_request_ends_if_its_responses_cannot_be_printed(tmp_path: Path) -> None:
    folder = repository(tmp_path, {"m": IDENTITY}) / "m"

    async def scenario() -> None:
        session = Session(folder, -1, ServerOptions())
        request = request_of(["INPUT0=1"], await opened(session), -1)

        def full(answer: object) -> None:
            raise BufferError("full")

        with pytest.raises(BufferError, match="full"):
            await session.infer(request, full)
        assert await session.close(CLOSE_SECONDS)

    run(scenario)


def test_given_version_is_loaded_against_the_policy(tmp_path: Path) -> None:
    folder = repository(tmp_path, {"m": IDENTITY}, versions=("1", "2")) / "m"

    async def answering(version: int) -> int:
        session = Session(folder, version, ServerOptions())
        try:
            config = await opened(session)
            [answer] = await session.infer(request_of(["INPUT0=1"], config, version))
            assert isinstance(answer, InferResponse)
            return answer.model_version
        finally:
            await session.close(CLOSE_SECONDS)

    assert run(lambda: answering(-1)) == 2
    assert run(lambda: answering(1)) == 1
    with pytest.raises(Invalid, match="at least one version must be available"):
        run(lambda: answering(7))


def test_cancelled_session_ends_while_it_loads(tmp_path: Path) -> None:
    text = IDENTITY.replace('"identity"', '"python"')
    folder = repository(tmp_path, {"m": text}) / "m"
    os.mkfifo(tmp_path / "begun")
    (folder / "1" / "model.py").write_text(f"open({str(tmp_path / 'begun')!r}, 'w').write('x')\nwhile True: pass\n")

    async def scenario() -> None:
        reader, begun = os.open(tmp_path / "begun", os.O_RDONLY | os.O_NONBLOCK), asyncio.Event()
        asyncio.get_running_loop().add_reader(reader, begun.set)
        session = Session(folder, -1, ServerOptions())
        opening = asyncio.ensure_future(opened(session))
        await begun.wait()  # `run` bounds the wait
        asyncio.get_running_loop().remove_reader(reader)
        os.close(reader)
        opening.cancel()
        await asyncio.wait([opening])
        assert await session.close(CLOSE_SECONDS)

    run(scenario)


def test_path_must_be_a_directory(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="is not a model directory"):
        Session(tmp_path / "none", -1, ServerOptions())


@pytest.mark.parametrize("names_the_repository", [False, True])
def test_ensemble_gets_the_models_that_it_needs(tmp_path: Path, names_the_repository: bool) -> None:
    """From the repository that it lies in, or from one that is named. A broken model there does not matter."""
    root = repository(tmp_path / "root", {"e": _ENSEMBLE, "a": IDENTITY, "broken": "backend: 'none'"})

    async def scenario() -> None:
        options = ServerOptions(model_repositories=(str(root),) if names_the_repository else ())
        session = Session(root / "e", -1, options)
        [answer] = await session.infer(request_of(["INPUT0=[3,4]"], await opened(session), -1))
        assert isinstance(answer, InferResponse)
        assert array_of(answer.outputs[0]).tolist() == [[3, 4]]
        assert await session.close(CLOSE_SECONDS)

    run(scenario)


def test_model_that_is_not_needed_is_not_loaded(tmp_path: Path) -> None:
    root = repository(tmp_path / "root", {"m": IDENTITY, "a": IDENTITY})
    (root / "m" / "1" / "model.py").write_text("calls = 'b'\n")
    session = Session(root / "m", -1, ServerOptions())

    async def scenario() -> list[str]:
        await opened(session)
        assert session._engine is not None
        names = [record.name for record in session._engine.models]
        assert await session.close(CLOSE_SECONDS)
        return names

    assert run(scenario) == ["m"]
