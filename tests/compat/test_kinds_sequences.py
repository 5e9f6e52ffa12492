"""The kinds of example clients that send sequences (`kinds.KINDS`): each client with one request at a time; both gRPC
clients with all sequences at once in one stream; numbers and strings as ids; with and without a model that gets the id.
"""

import asyncio
import queue
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.grpc.aio as grpcaio

from tests.compat.kinds import LIMIT, Spoken
from tests.compat.serving import Serving

VALUES = (11, 7, 5, 3, 2, 0, 1)
TEXT = "8a2f4f9e-6f3f-4a53-9d6f-0c1e5b1f7c11"

_SOURCE = """import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        given = {tensor.name(): tensor.as_numpy().item() for tensor in request.inputs()}
        value = given["INPUT"] + given["START"]
        if "CORRID" in given:
            value = given["INPUT"] + (0 if given["START"] else self.sums[given["CORRID"]])
            self.sums[given["CORRID"]] = value
            if given["END"]:
                del self.sums[given["CORRID"]]
                value += int(given["CORRID"])
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", np.array([[value]], np.int32))])
"""
_OLDEST = "oldest { max_candidate_sequences: 1024 max_queue_delay_microseconds: 1000 } "
_TWO = "instance_group { kind: KIND_CPU count: 2 }\n"


def _control(kind: str, values: str = "int32_false_true: [ 0, 1 ]") -> str:
    return f'control_input {{ name: "{kind}" control {{ kind: CONTROL_SEQUENCE_{kind} {values} }} }}\n'


def _told(datatype: str) -> str:
    controls = "".join(_control(kind) for kind in ("START", "END", "READY"))
    return f"sequence_batching {{ {_OLDEST}{controls}{_control('CORRID', f'data_type: TYPE_{datatype}')} }}\n{_TWO}"


MODELS = {
    "steps": f"sequence_batching {{ {_control('START')}{_control('READY')} }}\ninstance_group {{ kind: KIND_CPU }}\n",
    "numbered": _told("UINT64"),
    "named": _told("STRING"),
}
"""`steps` adds 1 to the first value of a sequence. The others have two instances each, answer the sum so far, and add
the sequence's id to the last value. The type of the id is in their configuration."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A sequence and the expected answers."""

    model: str
    sequence: int | str
    values: Sequence[int]
    got: list[int] = field(default_factory=list)

    def requests(self, module: Any) -> Iterator[dict[str, Any]]:
        for index, value in enumerate(self.values):
            tensor = module.InferInput("INPUT", [1, 1], "INT32")
            tensor.set_data_from_numpy(np.array([[value]], np.int32))
            yield {
                "model_name": self.model,
                "inputs": [tensor],
                "outputs": [module.InferRequestedOutput("OUTPUT")],
                "request_id": f"{self.sequence}_{index}",
                "sequence_id": self.sequence,
                "sequence_start": index == 0,
                "sequence_end": index == len(self.values) - 1,
            }

    @property
    def expected(self) -> list[int]:
        if self.model == "steps":
            return [self.values[0] + 1, *self.values[1:]]
        sums = [int(total) for total in np.cumsum(self.values)]
        return [*sums[:-1], sums[-1] + int(self.sequence)]


def sent(first: int) -> list[Sent]:
    """The sequences of a test. `first` keeps their ids apart from those of other tests."""
    minus = [-value for value in VALUES]
    return [
        Sent("steps", first, [0, *VALUES]),
        Sent("steps", first + 1, [100, *minus]),
        Sent("steps", f"{TEXT}-{first}", [20, *minus]),
        Sent("numbered", first + 2, [0, *VALUES]),
        Sent("numbered", first + 3, [100, *minus]),
        Sent("named", str(first + 4), [20, *minus]),
    ]


def interleaved(sequences: Sequence[Sent], module: Any) -> Iterator[dict[str, Any]]:
    for together in zip_longest(*(sequence.requests(module) for sequence in sequences)):
        yield from (request for request in together if request is not None)


def take(sequences: Sequence[Sent], result: Any) -> None:
    """Adds a result to the sequence that its id names."""
    sequence, _, index = result.get_response().id.rpartition("_")
    (found,) = (one for one in sequences if str(one.sequence) == sequence)
    assert len(found.got) == int(index), "answers of a sequence come in the order of its requests"
    found.got.append(result.as_numpy("OUTPUT").item())


def check(sequences: Sequence[Sent]) -> None:
    assert [sequence.got for sequence in sequences] == [sequence.expected for sequence in sequences]


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("sequences")
    for name, more in MODELS.items():
        version: Path = folder / "models" / name / "1"
        version.mkdir(parents=True)
        (version / "model.py").write_text(_SOURCE)
        (version.parent / "config.pbtxt").write_text(
            'backend: "python"\nmax_batch_size: 8\n'
            'input { name: "INPUT" data_type: TYPE_INT32 dims: 1 }\n'
            f'output {{ name: "OUTPUT" data_type: TYPE_INT32 dims: 1 }}\n{more}'
        )
    with Serving(folder / "models", folder / "server.log") as serving:
        yield serving.wait_until_live()
        assert serving.stop() == 0, serving.log_text()[-3000:]


@pytest.mark.parametrize(
    ("name", "first"), [("http", 1000), ("grpc", 1010), ("http.aio", 1020), ("grpc.aio", 1030)], ids=lambda given: given
)
def test_one_request_at_a_time(name: str, first: int, serving: Serving) -> None:
    spoken, sequences = Spoken(name, serving), sent(first)

    async def ask(call: Any) -> None:
        for sequence in sequences:
            for request in sequence.requests(spoken.module):
                result = await call("infer", **request)
                sequence.got.append(result.as_numpy("OUTPUT").item())

    spoken.ask(ask)
    check(sequences)


def test_all_at_once_in_a_stream(serving: Serving) -> None:
    sequences, answers = sent(2000), queue.SimpleQueue[tuple[Any, Any]]()
    with grpcclient.InferenceServerClient(serving.grpc_url) as client:
        client.start_stream(lambda result, error: answers.put((result, error)), stream_timeout=LIMIT)
        for request in interleaved(sequences, grpcclient):
            client.async_stream_infer(**request)
        for _ in range(sum(len(sequence.values) for sequence in sequences)):
            result, error = answers.get(timeout=LIMIT)
            assert error is None, error
            take(sequences, result)
    check(sequences)


def test_all_at_once_in_a_stream_of_the_asyncio_client(serving: Serving) -> None:
    sequences = sent(3000)

    async def requests() -> AsyncIterator[dict[str, Any]]:
        for request in interleaved(sequences, grpcaio):
            yield request

    async def run() -> None:
        async with grpcaio.InferenceServerClient(serving.grpc_url) as client:
            async for result, error in client.stream_infer(requests(), stream_timeout=LIMIT):
                assert error is None, error
                take(sequences, result)

    asyncio.run(asyncio.wait_for(run(), LIMIT))
    check(sequences)
