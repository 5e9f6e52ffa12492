"""What a step of an ensemble costs: CPU time per inference of chains of models that cost nothing, in process.

`.venv/bin/python bench/micro_ensemble.py [ROUNDS]` serves `models/floor` alone and in chains of 2, 4 and 8 steps, hands
raw requests to the gRPC service as a transport would, and prints microseconds: the best of many short rounds, since
whatever else the machine does only ever adds. What a call costs by the number of its steps is one line; its slope is
what a step costs, and `engine` leaves out decoding and encoding.
"""

import asyncio
import gc
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from time import process_time_ns

import numpy as np
from tritonclient.grpc import service_pb2 as pb

from halimede.front.grpc import GrpcService
from halimede.options import ServerOptions
from halimede.platform.loops import new_event_loop
from halimede.requests import Answer, InferResponse, Resume
from halimede.scheduling import inline
from halimede.service.engine import Engine
from halimede.transport.grpc_calls import Message, Metadata, Unary
from halimede.wire.grpc import version_of

MODELS = Path(__file__).parent / "models"
INFER = "/inference.GRPCInferenceService/ModelInfer"
CHAINS = (2, 4, 8)
CALLS = 8  # in a round

HEAD = """platform: "ensemble" max_batch_size: 64
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""
STEP = """{ model_name: "floor" model_version: -1
  input_map { key: "INPUT0" value: "%s" } output_map { key: "OUTPUT0" value: "%s" } }"""


class NullCall:
    """A call whose client never minds, and of which only the number of messages is kept."""

    metadata: Metadata = ()

    def __init__(self) -> None:
        self.sent = 0

    def send(self, message: Message) -> bool:
        self.sent += 1
        return True

    def on_writable(self, resume: Callable[[], None]) -> None:
        raise AssertionError("it is always writable")

    def on_sent(self, done: Callable[[], None]) -> None:
        done()

    def hold_back(self) -> None:
        """The rounds bound what is under way."""

    def go_on(self) -> None:
        pass

    def finish(self, code: int = 0, text: str = "") -> None:
        assert not code, text


class CountingReply:
    """A reply slot that only counts."""

    def __init__(self) -> None:
        self.sent = 0

    def send(self, answer: Answer, final: bool) -> bool:
        assert isinstance(answer, InferResponse), answer
        self.sent += 1
        return True

    def on_writable(self, resume: Resume) -> None:
        raise AssertionError("it is always writable")


def chain(steps: int) -> str:
    """The configuration of an ensemble of `floor` behind `floor`."""
    names = ["INPUT0", *(f"between_{i}" for i in range(1, steps)), "OUTPUT0"]
    written = ",\n".join(STEP % pair for pair in pairwise(names))
    return f"{HEAD}ensemble_scheduling {{ step [ {written} ] }}\n"


def floats(model: str) -> bytes:
    request = pb.ModelInferRequest(model_name=model, raw_input_contents=[np.zeros(16, np.float32).tobytes()])
    request.inputs.add(name="INPUT0", datatype="FP32", shape=(1, 16))
    request.outputs.add(name="OUTPUT0")
    return bytes(request.SerializeToString())


class Bench:
    """A service over an engine, both on the running loop."""

    def __init__(self, engine: Engine, rounds: int) -> None:
        self._engine = engine
        self._service = GrpcService(engine)
        self._rounds = rounds

    async def row(self, model: str) -> tuple[float, float]:
        """Microseconds of a whole call, and of it what the engine takes with the models."""
        data, call, reply, engine = floats(model), NullCall(), CountingReply(), self._engine
        decoder, unary = self._service.decoder, self._service.rpcs[INFER]
        assert isinstance(unary, Unary)

        def whole() -> None:
            unary.handler(data, call)

        def decode() -> None:
            incoming = decoder.parse(data)
            decoder.request(incoming, version_of(incoming.model_version))

        def infer() -> None:
            incoming = decoder.parse(data)
            engine.infer(decoder.request(incoming, version_of(incoming.model_version)), reply)

        return (
            await self._best(whole, lambda: call.sent),
            await self._best(infer, lambda: reply.sent) - await self._best(decode, None),
        )

    async def _best(self, call: Callable[[], None], sent: Callable[[], int] | None) -> float:
        """Microseconds of a call. Each round is in a turn of the loop of its own; of those with answers to expect only
        those count in which all came at once."""
        best = sys.maxsize
        if sent is not None:
            await self._catch_up(call, sent)
        for _ in range(self._rounds):
            before = sent() if sent is not None else 0
            start = process_time_ns()
            for _ in range(CALLS):
                call()
            took = process_time_ns() - start
            if sent is None or sent() - before == CALLS:
                best = min(best, took)
            else:
                await self._catch_up(call, sent)
            await asyncio.sleep(0)
        return best / CALLS / 1000

    async def _catch_up(self, call: Callable[[], None], sent: Callable[[], int]) -> None:
        """Until the model was seen often enough to run on the loop, and nothing is under way."""
        asked, at_once = sent(), 0
        async with asyncio.timeout(60):
            while at_once < 3:
                call()
                asked += 1
                at_once = at_once + 1 if sent() == asked else 0
                while sent() < asked:  # not in a busy loop, beside which no thread would be quick
                    await asyncio.sleep(0.0005)
                await asyncio.sleep(0)


@contextmanager
def repository() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(MODELS / "floor", Path(folder, "floor"))
        for steps in CHAINS:
            model = Path(folder, f"chain_{steps}")
            Path(model, "1").mkdir(parents=True)
            Path(model, "config.pbtxt").write_text(chain(steps))
        yield folder


def allow_always() -> None:
    """Whatever else the machine does shall not send the model to its threads."""
    for bound in ("QUICK_NS", "PROMISING_NS", "LONG_NS", "TURN_NS"):
        setattr(inline, bound, sys.maxsize)


async def main(rounds: int) -> None:
    allow_always()
    with repository() as folder:
        engine = Engine(ServerOptions(model_repositories=(folder,)), asyncio.get_running_loop())
        assert await engine.start()
        gc.collect()
        gc.freeze()  # as the server does
        bench = Bench(engine, rounds)
        print("| us of CPU a call | whole | engine, models | a step |")
        print("|---|---:|---:|---:|")
        alone, by_two = await bench.row("floor"), 0.0
        print(f"| floor | {alone[0]:.2f} | {alone[1]:.2f} | |", flush=True)
        for steps in CHAINS:
            whole, engine_only = await bench.row(f"chain_{steps}")
            step = f"{(engine_only - by_two) / (steps - CHAINS[0]):.2f}" if steps > CHAINS[0] else ""
            by_two = by_two or engine_only
            print(f"| {steps} of them | {whole:.2f} | {engine_only:.2f} | {step} |", flush=True)
        await engine.stop(5)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000))
