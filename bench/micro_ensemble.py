"""Measures the cost of an ensemble's step: CPU time per inference of chains of models that cost nothing, in process.

`.venv/bin/python -m bench.micro_ensemble [ROUNDS]` serves `models/floor` alone and in chains of 2, 4 and 8 steps. It
hands raw requests to the gRPC service as a transport would, and prints microseconds. The best of many short rounds
counts, because other programs only ever add time. The cost of a call grows linearly with its steps; the slope is the
cost of a step. `engine` excludes decoding and encoding.
"""

import asyncio
import gc
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

from bench.micro_grpc import MODELS, RPC, LastReply, NullCall, best, floats
from halimede.engine.engine import Engine
from halimede.front.grpc.service import GrpcService
from halimede.options import ServerOptions
from halimede.platform.loops import new_event_loop
from halimede.scheduling import inline
from halimede.transport.grpc.calls import Unary
from halimede.wire.grpc.infer import version_of

CHAINS = (2, 4, 8)
CALLS = 8  # in a round

HEAD = """platform: "ensemble" max_batch_size: 64
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""
STEP = """{ model_name: "floor" model_version: -1
  input_map { key: "INPUT0" value: "%s" } output_map { key: "OUTPUT0" value: "%s" } }"""


def chain(steps: int) -> str:
    """The configuration of an ensemble that runs `floor` `steps` times in a row."""
    names = ["INPUT0", *(f"between_{i}" for i in range(1, steps)), "OUTPUT0"]
    written = ",\n".join(STEP % pair for pair in pairwise(names))
    return f"{HEAD}ensemble_scheduling {{ step [ {written} ] }}\n"


class Bench:
    """A gRPC service over an engine, both on the running loop."""

    def __init__(self, engine: Engine, rounds: int) -> None:
        self._engine = engine
        self._service = GrpcService(engine)
        self._rounds = rounds

    async def row(self, model: str) -> tuple[float, float]:
        """CPU microseconds of a whole call, and of the engine with the models alone."""
        data, call, reply, engine = floats(1, 16, model=model), NullCall(), LastReply(), self._engine
        decoder, unary = self._service.decoder, self._service.rpcs[RPC + "ModelInfer"]
        assert isinstance(unary, Unary)

        def whole() -> None:
            unary.handler(data, call)

        def decode() -> None:
            incoming = decoder.parse(data)
            decoder.request(incoming, version_of(incoming.model_version))

        def infer() -> None:
            incoming = decoder.parse(data)
            engine.infer(decoder.request(incoming, version_of(incoming.model_version)), reply)

        rounds = self._rounds
        return (
            await best(rounds, whole, call, CALLS),
            await best(rounds, infer, reply, CALLS) - await best(rounds, decode, calls=CALLS),
        )


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
    """Keeps the models on the event loop, whatever else the machine does."""
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
        print("| us of CPU per call | whole | engine, models | per step |")
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
