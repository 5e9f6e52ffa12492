"""A model without a server: loading, answers, and the end."""

import asyncio
from pathlib import Path

import pytest

from halimede.devtools.inputs import request_of
from halimede.devtools.session import Session
from halimede.errors import Error, Invalid
from halimede.options import ServerOptions
from halimede.requests import InferResponse
from halimede.tensors import array_of
from tests.engine.engines import IDENTITY, run
from tests.models.fakes import repository

CLOSE_SECONDS = 10.0


def test_session_answers_and_leaves_nothing(tmp_path: Path) -> None:
    folder = repository(tmp_path, {"m": IDENTITY, "other": IDENTITY}) / "m"

    async def scenario() -> None:
        session = Session(folder, -1, ServerOptions())
        config = await session.open()
        [answer] = await session.infer(request_of(["INPUT0=[1,2]"], config, -1))
        assert isinstance(answer, InferResponse)
        assert array_of(answer.outputs[0]).tolist() == [[1, 2]]
        [refused] = await session.infer(request_of(["INPUT0=[[1],[2],[3],[4],[5]]"], config, -1))
        assert isinstance(refused, Error)
        assert await session.close(CLOSE_SECONDS)

    run(scenario)


def test_models_of_the_repositories_are_loaded_or_those_that_are_named(tmp_path: Path) -> None:
    folder = repository(tmp_path / "own", {"m": IDENTITY}) / "m"
    others = repository(tmp_path / "others", {"a": IDENTITY, "broken": "backend: 'none'"})

    async def open_with(*named: str) -> None:
        session = Session(folder, -1, ServerOptions(model_repositories=(str(others),), load_models=named))
        try:
            await session.open()
        finally:
            assert await session.close(CLOSE_SECONDS)

    run(lambda: open_with("a"))
    with pytest.raises(Invalid, match="some of the models that this one may call could not be loaded"):
        run(open_with)


def test_model_goes_before_those_of_its_name_in_the_repositories(tmp_path: Path) -> None:
    """And those that lie beside it are not looked at."""
    folder = repository(tmp_path / "own", {"m": IDENTITY, "a": IDENTITY}) / "m"
    (folder / "2").mkdir()
    others = repository(tmp_path / "others", {"m": IDENTITY, "a": IDENTITY})
    again = repository(tmp_path / "again", {"m": IDENTITY})

    async def scenario() -> None:
        options = ServerOptions(model_repositories=(str(others), str(again)))
        session = Session(folder, -1, options)
        config = await session.open()
        [answer] = await session.infer(request_of(["INPUT0=1"], config, -1))
        assert isinstance(answer, InferResponse)
        assert answer.model_version == 2
        assert await session.close(CLOSE_SECONDS)

    run(scenario)


def test_request_ends_where_its_answers_cannot_be_taken(tmp_path: Path) -> None:
    folder = repository(tmp_path, {"m": IDENTITY}) / "m"

    async def scenario() -> None:
        session = Session(folder, -1, ServerOptions())
        request = request_of(["INPUT0=1"], await session.open(), -1)

        def full(answer: object) -> None:
            raise BufferError("full")

        with pytest.raises(BufferError, match="full"):
            await session.infer(request, full)
        assert await session.close(CLOSE_SECONDS)

    run(scenario)


def test_version_is_loaded_though_the_policy_says_otherwise(tmp_path: Path) -> None:
    folder = repository(tmp_path, {"m": IDENTITY}, versions=("1", "2")) / "m"

    async def answering(version: int) -> int:
        session = Session(folder, version, ServerOptions())
        try:
            config = await session.open()
            [answer] = await session.infer(request_of(["INPUT0=1"], config, version))
            assert isinstance(answer, InferResponse)
            return answer.model_version
        finally:
            await session.close(CLOSE_SECONDS)

    assert run(lambda: answering(-1)) == 2
    assert run(lambda: answering(1)) == 1
    with pytest.raises(Invalid, match="at least one version must be available"):
        run(lambda: answering(7))


def test_session_that_is_given_up_while_it_loads_ends(tmp_path: Path) -> None:
    text = IDENTITY.replace('"identity"', '"python"')
    folder = repository(tmp_path, {"m": text}) / "m"
    (folder / "1" / "model.py").write_text(f"open({str(tmp_path / 'begun')!r}, 'w').close()\nwhile True: pass\n")

    async def scenario() -> None:
        session = Session(folder, -1, ServerOptions())
        opening = asyncio.ensure_future(session.open())
        while not (tmp_path / "begun").exists():  # `run` bounds the wait
            await asyncio.sleep(0.01)
        opening.cancel()
        await asyncio.wait([opening])
        assert await session.close(CLOSE_SECONDS)

    run(scenario)


def test_path_that_is_no_directory(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="is not a model directory"):
        Session(tmp_path / "none", -1, ServerOptions())
