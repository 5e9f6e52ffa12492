"""Runs the warm-up samples of a configuration on every instance before its version serves (W1 to W4).

Runs on a load thread, which waits for each sample. An instance with a thread of its own, or on the event loop, executes
where it always does. Any other executes on a thread that ends with the warm-up. Responses are dropped, and the
scheduling policy sees no sample. `WarmUpRun` is what statistics count.
"""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from math import prod
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event
from time import monotonic_ns

from halimede.backends.api import Instance, InstancePlace, Placement, Rewarmed
from halimede.config import ModelConfig, WarmupData, WarmupInput, WarmupSample
from halimede.config.files import read_whole
from halimede.errors import Error, Internal, Invalid
from halimede.models.abilities import STRING_BYTES
from halimede.models.checks import Fit, RequestCheck
from halimede.models.policies import ragged_of
from halimede.platform.slices import Sliced
from halimede.requests import NULL_REPLY, InferRequest
from halimede.scheduling.execution import Execution
from halimede.scheduling.inference import Inference
from halimede.scheduling.runner_config import Observer
from halimede.tensors import BOOL, BYTES, DataType, HostMemory, Tensor

log = logging.getLogger(__name__)

FOLDER = "warmup"
"""The folder within a model's folder that has the files of samples."""
MAX_REPEATED_ERRORS = 64
"""How often one error is repeated, once for each request of a sample."""
COUNTED_TOGETHER = 256
"""Requests of a sample that are counted without a look at the clock, which takes a tenth of a millisecond."""
ENDING_CHECK_SECONDS = 0.1
"""How often the wait for a sample checks whether the server ends."""

_VERBOSE = logging.INFO - 1
"""The log level that `--log-verbose=1` shows."""
_TO_BOOL = bytes(byte & 1 for byte in range(256))
"""Translates random bytes to valid booleans."""

_PreparedSample = tuple[WarmupSample, InferRequest, Fit]
"""A sample, and the request that it consists of (once, or several times as a batch)."""

OnLoop = Callable[[Callable[[], None]], object]
"""Runs a callback on the event loop, soon. Called on any thread."""


@dataclass(frozen=True, slots=True)
class WarmUpRun:
    """A sample that ran on an instance: `number` equal requests in one batch. Times are monotonic nanoseconds."""

    number: int
    batch_size: int
    """Of each request; 0 if the model has no batching."""
    begun: int
    times: tuple[int, int, int, int]
    """Those of `Execution.times`."""
    ended: int


def count_runs(runs: Sequence[WarmUpRun], observer: Observer) -> Sliced[None]:
    """Counts samples like other inferences (W2). On the event loop, in slices: they may be a million."""
    for run in runs:
        start, input_end, output_start, end = run.times
        observer.executed(run.number, input_end - start, output_start - input_end, end - output_start)
        inference = Inference(0, InferRequest("", -1), NULL_REPLY, run.batch_size, ())
        inference.times = [run.begun, run.begun, *run.times]
        for number in range(1, run.number + 1):
            observer.succeeded(inference, run.ended)
            if number % COUNTED_TOGETHER == 0:
                yield
        yield


@dataclass(frozen=True, slots=True)
class Warming:
    """What an instance needs to run samples. `check` raises if the load is to end: samples may be many, or hang.
    `runs` gets each sample that ran; instances add to it from several threads."""

    config: ModelConfig
    placement: Placement
    on_loop: OnLoop
    check: Callable[[], None]
    runs: list[WarmUpRun] = field(default_factory=list)

    @property
    def datatypes(self) -> Mapping[str, DataType]:
        # Not those of states: a sample belongs to no sequence, so its request asks for none.
        return {spec.name: spec.datatype for spec in self.config.outputs}


def warm_up(
    warming: Warming, folder: Path, version: int, instances: Sequence[tuple[InstancePlace, Instance]], together: int
) -> None:
    """Runs every sample on every instance that is not passive, on up to `together` instances at the same time. Blocks.

    Instances that restart are warmed up again from then on. Raises Error if a sample is no valid request or fails.
    """
    samples = [(sample, *_request(sample, warming.config, folder, version)) for sample in warming.config.warmup]
    if not samples:  # as for most models, which need no thread then
        return
    failed = Event()

    def warm(place: InstancePlace, instance: Instance) -> None:
        try:
            _warm(warming, samples, place, instance, failed)
        except BaseException:
            failed.set()
            raise

    with ThreadPoolExecutor(max(1, min(together, len(instances))), "warm-up") as pool:
        begun = [pool.submit(warm, place, instance) for place, instance in instances if not place.passive]
        for each in begun:
            each.result()
    for place, instance in instances:
        if isinstance(instance, Rewarmed) and not place.passive:
            instance.warm_again_by(partial(_WarmingAgain, warming, samples, place, instance))


def sample_problems(config: ModelConfig, folder: Path, version: int) -> list[Error]:
    """The error of each sample that is no valid request. Runs none of them."""
    problems = []
    for sample in config.warmup:
        try:
            _request(sample, config, folder, version)
        except Error as error:
            problems.append(error)
    return problems


def _warm(
    warming: Warming,
    samples: Sequence[_PreparedSample],
    place: InstancePlace,
    instance: Instance,
    failed: Event,
) -> None:
    """Runs all samples on one instance, or stops once another instance has `failed`. Raises Error."""
    model = warming.config.name
    for sample, request, fit in samples:
        for iteration in range(1, sample.count + 1):
            if failed.is_set():  # the load fails anyway
                return
            warming.check()
            log.log(
                _VERBOSE,
                "model '%s' instance %s is running warmup sample '%s' for iteration %d",
                *(model, place.name, sample.name, iteration),
            )
            with place.host.applied():
                errors = _run(warming, place.name, instance, sample, request, fit)
            if errors:
                raise Invalid(f"failed to run warmup sample '{sample.name}': {''.join(f'{e}; ' for e in errors)}")


# One sample on one instance.


def _run(
    warming: Warming, name: str, instance: Instance, sample: WarmupSample, request: InferRequest, fit: Fit
) -> Sequence[Error]:
    """Runs a sample once. Returns the errors in the order in which they came."""
    most, number = warming.config.max_batch_size, sample.batch_size
    # The scheduler would refuse such a request; an instance must not get it either. A model without batching (0) may
    # still have a sample with one request.
    if number > 1 and number > most:
        complaint = Internal(f"batch size {number} for '{name}', max allowed is {most}")
        return [complaint] * min(number, MAX_REPEATED_ERRORS)
    told: SimpleQueue[Execution] = SimpleQueue()
    execution = _execution(warming, sample, request, fit, told.put)
    begun = monotonic_ns()
    _start(execution, instance, warming)
    errors = _errors(execution, told, warming)
    if not errors:
        warming.runs.append(WarmUpRun(number, fit.batch_size, begun, execution.times(), monotonic_ns()))
    return errors


def _execution(
    warming: Warming, sample: WarmupSample, request: InferRequest, fit: Fit, told: Callable[[Execution], None]
) -> Execution:
    """The batch of a sample: its request, as often as the sample says."""
    reply, number = NULL_REPLY, sample.batch_size
    batch = [Inference(0, request, reply, fit.batch_size, fit.outputs, fit.batch_key) for _ in range(number)]
    execution = Execution(batch, number, 0, warming.datatypes, warming.config.decoupled, told)
    execution.ragged = ragged_of(warming.config)
    return execution


def _start(execution: Execution, instance: Instance, warming: Warming) -> None:
    own = getattr(instance, "thread", None)
    finishes = warming.placement is not Placement.ASYNC
    # A library may keep data for each thread. An instance to which that matters has a thread of its own (OnItsThread).
    # The threads of others do not exist yet: each starts with its first batch.
    if warming.placement is Placement.LOOP:
        execution.on_loop = True
        warming.on_loop(partial(execution.run, instance.execute, False))
    elif own is not None:
        own.submit(partial(execution.run, instance.execute, finishes))
    else:
        execution.run(instance.execute, finishes)


def _errors(execution: Execution, told: "SimpleQueue[Execution]", warming: Warming) -> Sequence[Error]:
    """Waits for the last response of every request and the end of the batch. Returns the errors among the responses."""
    errors: list[Error] = []
    missing = set(range(len(execution.requests)))
    while missing or not execution.done:
        try:
            told.get(timeout=ENDING_CHECK_SECONDS)
        except Empty:
            warming.check()
            continue
        errors += _taken(execution, warming.config.decoupled, missing)
    return errors


def _taken(execution: Execution, decoupled: bool, missing: set[int]) -> list[Error]:
    """Takes new responses. Removes requests with their last response from `missing`, and returns the errors."""
    # A decoupled model's responses come one by one, others all at the end of the batch.
    if decoupled:
        outcomes = execution.take()
    elif execution.done:
        outcomes = execution.single_answers()
    else:
        return []
    missing.difference_update(outcome.i for outcome in outcomes if outcome.final)
    return [outcome.answer for outcome in outcomes if isinstance(outcome.answer, Error)]


# An instance that restarted.


class _WarmingAgain:
    """Runs the samples on an instance that restarted, one after the other, on the event loop.

    They succeeded at the load, so a failure now is only logged, and the instance serves: `over` is called in any case.
    """

    def __init__(
        self,
        warming: Warming,
        samples: Sequence[_PreparedSample],
        place: InstancePlace,
        instance: Instance,
        over: Callable[[], None],
    ) -> None:
        self._warming = warming
        self._runs = iter([each for each in samples for _ in range(each[0].count)])
        self._who = f"model '{warming.config.name}' instance {place.name}"
        self._instance = instance
        self._over = over
        self._run_next()

    def _run_next(self) -> None:
        asked = next(self._runs, None)
        if asked is None:
            log.info("%s was warmed up again", self._who)
            self._over()
            return
        sample = asked[0]
        told = partial(self._told, sample.name, set(range(sample.batch_size)), [])
        execution = _execution(self._warming, *asked, told)
        execution.on_loop = True
        execution.run(self._instance.execute, False)

    def _told(self, sample: str, missing: set[int], errors: list[Error], execution: Execution) -> None:
        errors += _taken(execution, self._warming.config.decoupled, missing)
        # A decoupled model may end the batch before its responses, or send its responses before the end.
        if not execution.done or missing:
            return
        if errors:
            log.error(
                "%s: warmup sample '%s' failed after a restart: %s; it serves anyway", self._who, sample, errors[0]
            )
            self._over()
        else:
            # Not called directly: many samples that answer at once would be a deep recursion.
            self._warming.on_loop(self._run_next)


# The request of a sample.


def _request(sample: WarmupSample, config: ModelConfig, folder: Path, version: int) -> tuple[InferRequest, Fit]:
    """The request of a sample, checked like a client's. Inputs that are not in the configuration, such as those of
    sequence controls, are added unchecked. Raises Error."""
    request = InferRequest(config.name, version)
    known = {spec.name for spec in config.inputs}
    lead = (1,) if config.max_batch_size else ()
    for each in sample.inputs:
        if min(each.dims, default=0) < 0:
            raise Invalid(f"warmup setting expects all variable-size dimensions are specified for input '{each.name}'")
    given = {
        each.name: Tensor(each.name, each.datatype, lead + each.dims, HostMemory(_data(each, config, folder, request)))
        for each in sample.inputs
    }
    request.inputs = {name: tensor for name, tensor in given.items() if name in known}
    fit = RequestCheck(config).fit(request)
    request.inputs.update((name, tensor) for name, tensor in given.items() if name not in known)
    return request, fit


def _data(each: WarmupInput, config: ModelConfig, folder: Path, request: InferRequest) -> bytes | memoryview:
    elements = prod(each.dims)
    size = elements * (each.datatype.size or STRING_BYTES)
    if each.data is WarmupData.FILE:
        return _of_file(each, size, config, folder, request)
    if each.data is None:
        raise Invalid(f"warmup setting expects input '{each.name}' to have input_data_type set").prefixed(
            request.log_prefix
        )
    if each.data is WarmupData.ZERO or each.datatype is BYTES:
        return bytes(size)
    data = os.urandom(size)
    return data.translate(_TO_BOOL) if each.datatype is BOOL else data


def _of_file(each: WarmupInput, size: int, config: ModelConfig, folder: Path, request: InferRequest) -> memoryview:
    """Reads the data of an input. A client may have sent the configuration, so the file must be in the folder."""
    name = each.file.lstrip("/")
    if os.pardir in Path(name).parts:
        raise Invalid(f"'input_data_file' must stay within the folder '{FOLDER}' for {config.name}, got '{each.file}'")
    path = folder / FOLDER / name
    try:
        data = read_whole(path)
    except OSError as error:
        raise Internal(f"failed to open text file for read {path}: {error.strerror}") from error
    if each.datatype is BYTES:
        return memoryview(data)
    if len(data) < size:
        raise Invalid(
            f"warmup setting expects {size} bytes, but the data provided from {each.file}only has {len(data)} bytes"
        ).prefixed(request.log_prefix)
    return memoryview(data)[:size]
