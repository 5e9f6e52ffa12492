"""Measures a gRPC inference between the transport and the model: CPU time per call, in process, without a socket.

`.venv/bin/python bench/micro_grpc.py [ROUNDS]` serves `models/floor` (the model costs nothing) from a real engine. It
hands raw requests to the service as a transport would, and prints microseconds. The best of many short rounds counts,
because other programs only ever add time.
"""

import asyncio
import gc
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import process_time_ns
from typing import Any

import numpy as np
from tritonclient.grpc import service_pb2 as pb

from halimede.engine.engine import Engine
from halimede.front.grpc.service import GrpcService
from halimede.options import ServerOptions
from halimede.platform.loops import new_event_loop
from halimede.requests import Answer, InferResponse, Resume
from halimede.tensors import Buffer, join_bytes
from halimede.transport.grpc.calls import Bidirectional, Message, Metadata, Unary
from halimede.wire.grpc.infer import version_of

MODELS = Path(__file__).parent / "models"
RPC = "/inference.GRPCInferenceService/"
CALLS = 16
"""Calls in a round. Few enough to stay within the budget of inline work of one turn."""
STRINGS = (
    'backend: "identity" max_batch_size: 64 dynamic_batching { } instance_group [ { kind: KIND_CPU } ]\n'
    'input [ { name: "INPUT0" data_type: TYPE_STRING dims: [ -1 ] } ]\n'
    'output [ { name: "OUTPUT0" data_type: TYPE_STRING dims: [ -1 ] } ]\n'
)


class NullCall:
    """A call whose client is always ready. Counts the messages sent to it."""

    metadata: Metadata = ()
    peer = ""

    def __init__(self) -> None:
        self.sent = 0

    def peer_names(self) -> Sequence[str]:
        return ()

    def send(self, message: Message) -> bool:
        self.sent += 1
        return True

    def on_writable(self, resume: Callable[[], None]) -> None:
        raise AssertionError("it is always writable")

    def on_sent(self, done: Callable[[], None]) -> None:
        done()

    def hold_back(self) -> None:
        """Does nothing: the rounds bound the requests in flight."""

    def go_on(self) -> None:
        pass

    def finish(self, code: int = 0, text: str = "") -> None:
        assert not code, text


class LastReply:
    """A reply slot that keeps the last response, and counts them."""

    def __init__(self) -> None:
        self.sent = 0

    def send(self, answer: Answer, final: bool) -> bool:
        assert isinstance(answer, InferResponse), answer
        self.response = answer
        self.sent += 1
        return True

    def on_writable(self, resume: Resume) -> None:
        raise AssertionError("it is always writable")


def message(model: str, datatype: str, shape: tuple[int, ...], raw: bytes, **fields: str) -> bytes:
    request = pb.ModelInferRequest(model_name=model, raw_input_contents=[raw], **fields)
    request.inputs.add(name="INPUT0", datatype=datatype, shape=shape)
    request.outputs.add(name="OUTPUT0")
    return bytes(request.SerializeToString())


def floats(*shape: int, model: str = "floor", **fields: str) -> bytes:
    return message(model, "FP32", shape, np.zeros(shape, np.float32).tobytes(), **fields)


def rows() -> dict[str, Buffer]:
    """The messages as a transport hands them over: small ones as bytes, large ones as a view of a buffer."""
    words = join_bytes([f"a string of the batch {i:02}" for i in range(16)])
    return {
        "16 floats": floats(1, 16),
        "16 floats, id": floats(1, 16, id="7"),
        "batch of 8": floats(8, 16),
        "588 KiB": memoryview(bytearray(floats(1, 3 * 224 * 224))),
        "16 MiB": memoryview(bytearray(floats(1, 1 << 22))),
        "16 BYTES": message("strings", "BYTES", (1, 16), words),
    }


async def best(
    rounds: int, call: Callable[[], object], answers: NullCall | LastReply | None = None, calls: int = CALLS
) -> float:
    """CPU microseconds of a call in the best of the rounds. Each round is in its own turn of the loop.

    If `answers` counts answers, only rounds count in which all of them came at once. A model that the system has just
    interrupted runs on its thread for a while."""
    best = sys.maxsize
    if answers is not None:
        await _catch_up(call, answers)
    for _ in range(rounds):
        expected = 0 if answers is None else answers.sent + calls
        start = process_time_ns()
        for _ in range(calls):
            call()
        took = process_time_ns() - start
        if answers is None or answers.sent == expected:
            best = min(best, took)
        else:
            await _catch_up(call, answers)
        await asyncio.sleep(0)
    return best / calls / 1000


async def _catch_up(call: Callable[[], object], answers: NullCall | LastReply) -> None:
    """Calls until the model runs on the loop and no answer is outstanding."""
    at_once = False
    async with asyncio.timeout(60):
        while not at_once:
            before = answers.sent
            call()
            at_once = answers.sent > before
            # A loop that does not sleep would keep the interpreter from the thread of the model, which then looks slow.
            await asyncio.sleep(0.001)


class Bench:
    """A gRPC service over an engine, both on the running loop."""

    def __init__(self, engine: Engine, rounds: int) -> None:
        self._engine = engine
        self._service = GrpcService(engine)
        self._rounds = rounds

    async def row(self, data: Buffer) -> list[float]:
        """CPU microseconds of: the whole call, decoding, engine with runner and model, encoding, the remaining front,
        and a message on a stream."""
        service, engine, call, reply = self._service, self._engine, NullCall(), LastReply()
        decoder, encoder = service.decoder, service.encoder
        unary, streaming = service.rpcs[RPC + "ModelInfer"], service.rpcs[RPC + "ModelStreamInfer"]
        assert isinstance(unary, Unary)
        assert isinstance(streaming, Bidirectional)
        stream = streaming.open(call)

        def decode() -> Any:
            incoming = decoder.parse(data)
            return decoder.request(incoming, version_of(incoming.model_version))

        rounds = self._rounds
        whole = await best(rounds, lambda: unary.handler(data, call), call)
        decoding = await best(rounds, decode)
        # An inference consumes its request, so each call decodes a new one, and that time is subtracted.
        inferring = await best(rounds, lambda: engine.infer(decode(), reply), reply) - decoding
        encoding = await best(rounds, lambda: encoder.response(reply.response))
        streamed = await best(rounds, lambda: stream.message(data), call)
        return [whole, decoding, inferring, encoding, whole - decoding - inferring - encoding, streamed]


@contextmanager
def repository() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(MODELS / "floor", Path(folder, "floor"))
        Path(folder, "strings", "1").mkdir(parents=True)
        Path(folder, "strings", "config.pbtxt").write_text(STRINGS)
        yield folder


async def main(rounds: int) -> None:
    with repository() as folder:
        engine = Engine(ServerOptions(model_repositories=(folder,)), asyncio.get_running_loop())
        assert await engine.start()
        gc.collect()
        gc.freeze()  # as the server does
        bench = Bench(engine, rounds)
        print("| us of CPU per call | whole | decode | engine, model | encode | front | on a stream |")
        print("|---|---|---|---|---|---|---|")
        for name, data in rows().items():
            print(f"| {name} | {' | '.join(f'{figure:.2f}' for figure in await bench.row(data))} |", flush=True)
        await engine.stop(5)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 2000))
