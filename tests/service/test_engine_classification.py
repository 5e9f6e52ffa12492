"""Classification through the engine's port: labels from files, large outputs, statistics (contract H80 to H83)."""

import asyncio
from pathlib import Path

import numpy as np
import pytest

from halimede.errors import Error, Invalid
from halimede.requests import InferRequest
from halimede.service.port import ModelStatistics
from halimede.tensors import BOOL, INT32, Tensor, array_of, tensor_of
from tests.fakes import SerializingPort
from tests.service.engines import IDENTITY, ask, infer, options_for, request_of, run, running

LABELLED = IDENTITY.replace("dims: [ -1 ] }\ninstance", 'dims: [ -1 ] label_filename: "labels.txt" }\ninstance')
FLAGS = IDENTITY.replace("INT32", "BOOL")


def wanting(request: InferRequest, classes: int) -> InferRequest:
    request.classes = {"OUTPUT0": classes}
    return request


def texts(tensor: Tensor) -> list[list[bytes]]:
    listed: list[list[bytes]] = array_of(tensor).tolist()
    return listed


@pytest.mark.parametrize("far", [False, True])
def test_outputs_are_classified_with_the_labels_of_the_model(tmp_path: Path, far: bool) -> None:
    async def scenario() -> list[list[bytes]]:
        options = options_for(tmp_path, {"m": LABELLED})
        (tmp_path / "m" / "labels.txt").write_bytes(b"cat\n\xff\n")
        async with running(options) as engine:
            port = SerializingPort(engine, asyncio.get_running_loop()) if far else engine
            reply = await infer(port, wanting(request_of(1, 9, 5, rows=2), 2))
            return texts(reply.response.outputs[0])

    assert run(scenario) == [[b"9:1:\xff", b"5:2"]] * 2


def test_large_output_is_classified(tmp_path: Path) -> None:
    async def scenario() -> list[list[bytes]]:
        async with running(options_for(tmp_path, {"m": IDENTITY})) as engine:
            request = wanting(request_of(0), 1)
            request.inputs = {"INPUT0": tensor_of("INPUT0", INT32, np.arange(200_000, dtype=np.int32)[None])}
            return texts((await infer(engine, request)).response.outputs[0])

    assert run(scenario) == [[b"199999:199999"]]


def test_model_has_succeeded_where_its_output_cannot_be_classified(tmp_path: Path) -> None:
    """As in the real server, which classifies what the model has answered already (observed)."""

    async def scenario() -> tuple[object, int, int]:
        async with running(options_for(tmp_path, {"m": FLAGS})) as engine:
            request = wanting(request_of(0), 1)
            request.inputs = {"INPUT0": tensor_of("INPUT0", BOOL, np.ones((1, 1), np.bool_))}
            answer = (await infer(engine, request)).only
            found = await ask(engine, ModelStatistics("m"))
            assert not isinstance(found, Error)
            return answer, found[0].inference["success"].count, found[0].inference["fail"].count

    answer, successes, failures = run(scenario)
    assert isinstance(answer, Invalid)
    assert not answer.refused
    assert (successes, failures) == (1, 0)
