"""Measures the cost of traces for a gRPC inference: CPU time per call, in process, without a socket.

`.venv/bin/python -m bench.micro_tracing [ROUNDS]` serves `models/floor` (the model costs nothing) from one engine to
services with different trace settings, alternately. A round ends when everything is written, so it includes the work of
the writer thread. Prints CPU microseconds of the whole process, the best of the rounds.
"""

import asyncio
import gc
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import process_time_ns

from bench.micro_grpc import CALLS, RPC, NullCall, floats, repository
from halimede.engine.engine import Engine
from halimede.engine.tracing import Tracing
from halimede.front.grpc.service import GrpcService
from halimede.options import ServerOptions, TraceOptions
from halimede.platform.loops import new_event_loop
from halimede.tracing.writer import Writer
from halimede.transport.grpc.calls import Unary

TURNS = 1024
"""Turns of the loop in a round, with CALLS inferences each."""
SETTINGS = {"off": 0, "1 in 1,000": 1000, "1 in 10": 10, "every": 1}


class Traced:
    """A gRPC service that traces one request in `rate`; none if `rate` is 0."""

    def __init__(self, engine: Engine, rate: int, file: str) -> None:
        self._writer = Writer()
        options = TraceOptions(level=("TIMESTAMPS",) if rate else (), rate=rate, file=file)
        unary = GrpcService(engine, traces=Tracing(engine.models, options, self._writer)).rpcs[RPC + "ModelInfer"]
        assert isinstance(unary, Unary)
        self._handler: Callable[..., object] = unary.handler
        self._call = NullCall()
        self._data = floats(1, 16)

    async def round(self) -> float:
        """CPU microseconds of a call, in one round."""
        start = process_time_ns()
        expected = self._call.sent + TURNS * CALLS
        for _ in range(TURNS):
            for _ in range(CALLS):
                self._handler(self._data, self._call)
            await asyncio.sleep(0)
        while self._call.sent < expected or self._writer.busy:
            await asyncio.sleep(0.02)
        return (process_time_ns() - start) / TURNS / CALLS / 1000


async def main(rounds: int) -> None:
    with repository() as models, tempfile.TemporaryDirectory() as folder:
        engine = Engine(ServerOptions(model_repositories=(models,)), asyncio.get_running_loop())
        assert await engine.start()
        gc.collect()
        gc.freeze()  # as the server does
        services = {name: Traced(engine, rate, str(Path(folder, str(rate)))) for name, rate in SETTINGS.items()}
        best = dict.fromkeys(services, float(sys.maxsize))
        for _ in range(rounds):
            for name, service in services.items():
                best[name] = min(best[name], await service.round())
        print("| traced | us of CPU per call | more than off |")
        print("|---|---:|---:|")
        for name, took in best.items():
            print(f"| {name} | {took:.2f} | {took - best['off']:+.2f} |")
        await engine.stop(5)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 40))
