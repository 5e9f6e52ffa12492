"""What a run sends: its data, the requests made of them, shared memory, and the slots that send. Built once, before the
load processes are forked.
"""

import math
import mmap
import os
import random
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from halimede.errors import Invalid
from halimede.perf import schedules, tensorflow_serving
from halimede.perf.clients.grpc import SLOTS_PER_CONNECTION, CallSlot, Channel, GrpcSlot, grpc_head
from halimede.perf.clients.http1 import Head, HttpSlot
from halimede.perf.clients.io import Io, Slot, Target
from halimede.perf.data import Step, Value, from_directory, from_json, generated
from halimede.perf.generator import Generator
from halimede.perf.kinds import BODIES, encoder_of_kind, fixed_times, read_bodies, reader_of
from halimede.perf.model import Model
from halimede.perf.options import TRITON, Options
from halimede.perf.requests import (
    Encoder,
    GrpcEncoder,
    HttpEncoder,
    Place,
    Prepared,
    Tensor,
    batch_of,
    differs,
)
from halimede.perf.sequences import SequencePlan, Sequences
from halimede.perf.server import SERVICE, Server

SHARED = Path("/dev/shm")
"""Where POSIX shared memory is."""


@dataclass(frozen=True, slots=True)
class Workload:
    """What to send. `requests` are those of each stream of data, by step, `tensors` their inputs, and `steps` the data
    of which each was made. `lengths` counts the requests of each stream, and `counts` the steps of its data."""

    options: Options
    model: Model
    target: Target
    requests: Sequence[Sequence[Prepared]]
    tensors: Sequence[Sequence[Sequence[Tensor]]]
    steps: Sequence[Sequence[Sequence[Step]]]
    lengths: Sequence[int]
    counts: Sequence[int]
    has_data: bool
    regions: Sequence["Region"] = field(default_factory=tuple)
    times: tuple[int, ...] = ()
    """When the requests are due, with --fixed-schedule, in nanoseconds."""

    def close(self) -> None:
        for region in self.regions:
            region.close()

    def serve(self, control: socket.socket, number: int, of: int) -> None:
        """Makes load in a process of its own, number `number` of `of`, until the parent goes."""
        validate = _validator(self) if any(step.expected for each in self.steps for k in each for step in k) else None
        keeps = validate is not None or bool(self.options.export_file)
        generator = Generator(
            control,
            _slot_maker(self, keeps),
            partial(times, number=number, of=of),
            self.requests,
            self._sequences(number, of),
            bool(self.options.export_file),
            validate,
            number,
            of,
        )
        generator.run()

    def _sequences(self, number: int, of: int) -> Sequences | None:
        if not self.model.has_sequences:
            return None
        o = self.options
        plan = SequencePlan(
            o.sequence_id_start or 1,
            o.sequence_ids,
            of,
            number,
            o.sequence_length,
            o.sequence_length_variation,
            self.lengths,
            self.has_data,
            o.sequence_length_given,
        )
        return Sequences(plan, random.Random(number))


def times(schedule: tuple[object, ...], number: int, of: int) -> Iterator[int]:
    """The times of a schedule that one process serves. A schedule is a name, then a rate and a seed, or gaps."""
    name, what, *seed = schedule
    if name == "constant":
        found = schedules.constant(float(str(what)))
    elif name == "poisson":
        # Each process draws the whole schedule and takes its part, so that together they make a Poisson process.
        found = schedules.poisson(float(str(what)), random.Random(str(seed[0])))
    elif name == "fixed":
        assert isinstance(what, tuple)
        found = iter(what)
    else:
        assert isinstance(what, tuple)
        found = schedules.repeated(what)
    return schedules.share(found, number, of)


# ---- data and requests


def read_data(options: Options, model: Model, lot: random.Random) -> list[list[Step]]:
    """The data of the command line, or generated ones. Raises Invalid."""
    if options.kind in BODIES:
        return read_bodies(options)
    if not options.data_paths:
        return generated(model.inputs, options.zero_input, options.string_length, options.string_data, lot)
    streams: list[list[Step]] = []
    for each in map(Path, options.data_paths):
        if each.is_dir():
            streams += from_directory(each, model.inputs, model.outputs)
        else:
            members = ("timestamp", "delay", "session_id")
            from_json(each, model.inputs, model.outputs, streams, members)
    if not any(streams):
        raise Invalid("The data of the json file have no request")
    return streams


def build(options: Options, model: Model, target: Target, server: Server | None, lot: random.Random) -> Workload:
    """Reads the data and makes the requests. Raises Invalid, and what registering shared memory raises."""
    streams = read_data(options, model, lot)
    times: tuple[int, ...] = ()
    if options.fixed_schedule:
        steps, times = fixed_times(streams)
        streams = [steps]
    batches = [list(_batches(stream, options.batch_size)) for stream in streams]
    tensors = [[batch_of(model, batch) for batch in each] for each in batches]
    regions: list[Region] = []
    try:
        places, outputs = _share(options, model, server, tensors, regions)
        encoder = encoder_of(options, model, target)
        requests = [
            [encoder.prepare(each, places.get((i, k), {}), outputs) for k, each in enumerate(stream)]
            for i, stream in enumerate(tensors)
        ]
    except BaseException:
        for region in regions:
            region.close()
        raise
    lengths = [len(stream) for stream in requests]
    counts = [len(stream) for stream in streams]
    has_data = bool(options.data_paths)
    return Workload(
        options, model, target, requests, tensors, batches, lengths, counts, has_data, tuple(regions), times
    )


def _batches(steps: Sequence[Step], size: int) -> Iterator[list[Step]]:
    """Batches of consecutive steps, around the end, until they repeat."""
    count = len(steps)
    for k in range(count // math.gcd(count, size)):
        yield [steps[(k * size + j) % count] for j in range(size)]


def encoder_of(options: Options, model: Model, target: Target) -> Encoder:
    if options.kind not in TRITON:
        return encoder_of_kind(options, target.authority)
    if options.protocol == "grpc":
        return GrpcEncoder(model, options.parameters, options.compression)
    return HttpEncoder(
        model, target.authority, options.headers, options.input_format == "binary", options.output_format == "binary"
    )


# ---- shared memory


class Region:
    """A region of system shared memory that the server knows by its name."""

    def __init__(self, name: str, size: int) -> None:
        self.name, self.size = name, size
        self._path = SHARED / name
        descriptor = os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_EXCL, 0o600)
        try:
            os.ftruncate(descriptor, size)
            self._memory = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)

    @property
    def key(self) -> str:
        return f"/{self.name}"

    def write(self, offset: int, content: bytes) -> None:
        self._memory[offset : offset + len(content)] = content

    def close(self) -> None:
        self._memory.close()
        with suppress(FileNotFoundError):
            self._path.unlink()


def _share(
    options: Options,
    model: Model,
    server: Server | None,
    tensors: Sequence[Sequence[Sequence[Tensor]]],
    regions: list[Region],
) -> tuple[dict[tuple[int, int], Mapping[str, Place]], dict[str, Place]]:
    """Puts the inputs into shared memory, and makes room for the outputs (X12)."""
    if options.shared_memory == "none" or server is None:
        return {}, {}
    if options.shared_memory == "cuda":
        raise Invalid("--shared-memory cuda is not supported here; system is")
    server.unregister_all()
    total = sum(len(tensor.content) for stream in tensors for batch in stream for tensor in batch)
    inputs = _register(server, regions, f"halimede_perf_{os.getpid()}_inputs", max(total, 1))
    places: dict[tuple[int, int], Mapping[str, Place]] = {}
    at = 0
    for i, stream in enumerate(tensors):
        for k, batch in enumerate(stream):
            found = {}
            for tensor in batch:
                inputs.write(at, tensor.content)
                found[tensor.info.name] = Place(inputs.name, at, len(tensor.content))
                at += len(tensor.content)
            places[i, k] = found
    outputs = {}
    for name, info in model.outputs.items():
        fixed = math.prod(info.shape) * info.datatype.size if info.is_fixed() else 0
        size = max(1, (fixed or options.output_shared_memory) * options.batch_size)
        region = _register(server, regions, f"halimede_perf_{os.getpid()}_output_{name}", size)
        outputs[name] = Place(region.name, 0, size)
    return places, outputs


def _register(server: Server, regions: list[Region], name: str, size: int) -> Region:
    region = Region(name.replace("/", "_"), size)
    regions.append(region)
    server.register(region.name, region.key, size)
    return region


# ---- slots


def _slot_maker(workload: Workload, keeps: bool) -> Callable[[Generator, Io, int], Slot]:
    o, target = workload.options, workload.target
    if o.protocol != "grpc":
        heads: dict[bytes, Head] = {}
        return lambda generator, io, index: HttpSlot(generator, index, keeps, io, target, heads)
    encoding = "identity" if o.compression == "none" else o.compression
    metadata = tuple((name.lower().encode(), value.encode()) for name, value in o.headers)
    head = grpc_head(_path(o), target.authority, metadata, encoding, target.tls is not None)
    channels: list[Channel] = []

    def make(generator: Generator, io: Io, index: int) -> Slot:
        if index // SLOTS_PER_CONNECTION >= len(channels):
            channels.append(Channel(io, target))
        if o.kind == "dynamic_grpc":
            return CallSlot(generator, index, keeps, channels[-1], head)
        return GrpcSlot(generator, index, keeps, channels[-1], head, o.streaming, workload.model.is_decoupled)

    return make


def _path(options: Options) -> str:
    """The path of the method of gRPC that gets the requests."""
    if options.kind == "tfserving":
        return tensorflow_serving.SERVICE + "Predict"
    if options.kind == "dynamic_grpc":
        return f"/{options.grpc_method}"
    return SERVICE + ("ModelStreamInfer" if options.streaming else "ModelInfer")


# ---- validation


def _validator(workload: Workload) -> Callable[[int, int, bytes], str]:
    steps, read = workload.steps, reader_of(workload.options)

    def validate(stream: int, step: int, body: bytes) -> str:
        batch = steps[stream][step]
        expected = {
            name: Value(value.shape, b"".join(each.expected[name].content for each in batch))
            for name, value in batch[0].expected.items()
        }
        return differs(expected, read(body))

    return validate
