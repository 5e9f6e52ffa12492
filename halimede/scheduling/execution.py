"""One batch on one instance: what the backend reads (its `Batch`) and where it answers (its `Responses`).

The thread that runs the batch appends outcomes; a backend may append more from any thread later. The runner takes them
on the event loop. Both ends of the list of outcomes may be used from different threads at once.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import monotonic_ns
from typing import Any

import numpy.typing as npt

from halimede.devices import Device, DeviceArray, HostArray, as_error
from halimede.errors import Error, Internal
from halimede.requests import InferResponse, Parameters
from halimede.scheduling.assembly import gather, place, scatter, unexpected_output
from halimede.scheduling.backend_failures import log_exception
from halimede.scheduling.device_batch import gather_into, gathered_shape, scatter_from
from halimede.scheduling.flow import cost_of
from halimede.scheduling.inference import Inference
from halimede.scheduling.ragged import Ragged
from halimede.scheduling.runner_config import RunnerConfig
from halimede.scheduling.sequence_state import collect_states, insert_states
from halimede.tensors import DataType, Shape, Tensor

_NOBODY: frozenset[int] = frozenset()


@dataclass(slots=True)
class Outcome:
    """What a backend said about the request at index `i` of its batch.

    `answer` is its outputs, an error, or None for "no more responses". `again` asks the scheduler to run the request
    once more.
    """

    i: int
    answer: Sequence[Tensor] | Error | None
    final: bool
    parameters: Parameters | None = None
    again: bool = False


class Execution:
    """One batch.

    requests, rows, input_bytes -- its inferences in order, the number of their rows, and the bytes of their inputs
    instance -- index of the instance that runs it; -1 when that is free again
    notify -- called with this object, on any thread, when there are outcomes to take: at the end of the batch, and at
        every outcome of a decoupled model or of a request that answers `later`. None if the runner looks by itself
    has_destinations -- some outputs are written to destinations, or kept as states
    placed_ns -- time that writing to destinations took
    ragged -- set if inputs or outputs are not concatenated row by row
    clock -- returns monotonic nanoseconds
    """

    # Class attributes instead of slots: most are never set, so an instance is made faster.
    done: bool = False
    on_loop: bool = False
    ragged: Ragged | None = None
    has_destinations: bool = False
    _stateful: bool = False
    input_bytes: int = 0
    placed_ns: int = 0
    start: int = 0
    input_end: int = 0
    output_start: int = 0
    compute_end: int = 0
    _answers_given: bool = False

    def __init__(
        self,
        requests: Sequence[Inference],
        rows: int,
        instance: int,
        datatypes: Mapping[str, DataType],
        decoupled: bool,
        notify: Callable[["Execution"], None] | None,
        clock: Callable[[], int] = monotonic_ns,
    ) -> None:
        self.requests = requests
        self.instance = instance
        self.rows = rows
        self.outcomes: list[Outcome] = []
        self.later: frozenset[int] = _NOBODY
        self._datatypes = datatypes
        self._decoupled = decoupled
        self._notify = notify
        self._clock = clock

    # ---- what the backend reads

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        ragged, requests = self.ragged, self.requests
        gathered = gather(requests) if ragged is None else ragged.gather(requests)
        self.input_end = self._clock()
        return gathered

    def parts(self, name: str) -> list[Tensor]:
        return [one.request.inputs[name] for one in self.requests]

    def shape(self, name: str) -> Shape:
        if self.ragged is not None:
            self.ragged.check_gather(name)
        return gathered_shape(self.requests, name)

    def gather(self, name: str, into: HostArray | DeviceArray, device: Device | None = None) -> None:
        if self.ragged is not None:
            self.ragged.check_gather(name)
        gather_into(self.requests, name, into, device)
        self.input_end = self._clock()

    def arrays_of(self, i: int) -> dict[str, npt.NDArray[Any]]:
        requests = self.requests[i : i + 1]
        return gather(requests) if self.ragged is None else self.ragged.gather(requests)

    # ---- what the backend says

    def send(
        self, i: int, outputs: Sequence[Tensor] | None, final: bool = True, parameters: Parameters | None = None
    ) -> None:
        if not self.output_start:  # the first answer of a batch marks the end of its computation
            self.output_start = self._clock()
        if self.has_destinations:
            answer = self._placed(i, outputs)
            if isinstance(answer, Error):
                self.fail(i, answer, final)
                return
            outputs = answer
        if not final:
            self._wait_for_room(i, outputs)
        # `_add`, without its call: every answer comes here.
        self.outcomes.append(Outcome(i, outputs, final, parameters))
        if self._decoupled or self.later:
            self._tell(i)

    def fail(self, i: int, error: Error, final: bool = True) -> None:
        if not final:
            self._wait_for_room(i, error)
        self._add(Outcome(i, error, final))  # no mark of `output_start`: an error has no output to write

    def fail_all(self, error: Exception) -> None:
        if not isinstance(error, Error):
            log_exception(self.requests, error)
        failure = as_error(error)
        for i in range(len(self.requests)):
            self._add(Outcome(i, failure, True))

    def on_writable(self, i: int, resume: Callable[[], None]) -> None:
        flow = self.requests[i].flow
        if flow is None:
            resume()
        else:
            flow.on_writable(resume)

    def again(self, i: int) -> None:
        self._add(Outcome(i, None, True, again=True))

    def scatter(self, outputs: Mapping[str, Any], device: Device | None = None) -> None:
        self.output_start = self._clock()
        if device is not None:
            scatter_from(self, outputs, device, self._datatypes)
            return
        ragged, requests, types = self.ragged, self.requests, self._datatypes
        parts = scatter(requests, outputs, types) if ragged is None else ragged.scatter(requests, outputs, types)
        for i, part in enumerate(parts):
            answer = self._placed(i, part) if self.has_destinations else part
            # Not `send`: the batch is complete, so its end notifies of all answers at once.
            self.outcomes.append(Outcome(i, answer, True))

    def scatter_to(self, i: int, outputs: Mapping[str, npt.NDArray[Any]]) -> None:
        ragged, requests, types = self.ragged, self.requests[i : i + 1], self._datatypes
        parts = scatter(requests, outputs, types) if ragged is None else ragged.scatter(requests, outputs, types)
        self.send(i, parts[0])

    def compute_times(self, input_end: int, output_start: int) -> None:
        self.input_end, self.output_start = input_end, output_start

    def promise(self, later: Collection[int]) -> None:
        self.later = frozenset(later)

    def finished(self, later: Collection[int] = ()) -> None:
        self.compute_end = self._clock()
        if later:  # else `promise` may have named them
            self.later = frozenset(later)
        self.done = True
        if self._notify is not None:
            self._notify(self)

    def _placed(self, i: int, outputs: Sequence[Tensor] | None) -> Sequence[Tensor] | Error | None:
        """The outputs of one request after those with a destination were written there, or the error of writing them.
        On the thread that answers, so that large outputs do not block the loop if that is the instance's."""
        if not outputs or not 0 <= i < len(self.requests):  # the runner drops an answer for an unknown request
            return outputs
        if self._stateful:
            kept = collect_states(self.requests[i], outputs)
            if isinstance(kept, Error):
                return kept
            outputs = kept
        destinations = self.requests[i].destinations
        if destinations is None:
            return outputs
        began = self._clock()
        try:
            return place(outputs, destinations)
        except Error as error:
            return error
        finally:
            self.placed_ns += self._clock() - began

    def _wait_for_room(self, i: int, answer: Sequence[Tensor] | Error | None) -> None:
        """Blocks a thread that answers faster than the reader reads (G32)."""
        # The loop must not block: the reader could not read then.
        if not self.on_loop and 0 <= i < len(self.requests):
            flow = self.requests[i].flow
            if flow is not None:
                flow.enter(cost_of(answer))

    def _add(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        if self._decoupled or self.later:
            self._tell(outcome.i)

    def _tell(self, i: int) -> None:
        """Notifies at once of an outcome that must not wait until the batch has finished."""
        if (self._decoupled or i in self.later) and self._notify is not None:
            self._notify(self)

    # ---- what the runner calls

    def carry_states(self) -> None:
        """Adds the states of their sequences to the requests, before the batch runs. On the loop."""
        self._stateful = self.has_destinations = True
        insert_states(self.requests)

    def run(self, execute: Callable[["Execution", "Execution"], None], finishes: bool, now: int = 0) -> None:
        """Calls the backend. What it raises becomes the answer of every request without one. Never raises.

        `finishes`: the batch has finished when the call returns; a backend placed on the loop says so itself. `now` is
        the time if the caller has just read the clock, else 0."""
        self.start = now or self._clock()
        try:
            execute(self, self)
        except Error as error:
            self.break_off(error)
        except BaseException as error:  # a thread of the server outlives whatever a backend does, SystemExit included
            log_exception(self.requests, error)
            self.break_off(Internal(f"{type(error).__name__}: {error}"))
        else:
            if finishes:
                self.finished()

    def break_off(self, error: Error) -> None:
        """Fails all requests that have no answer yet, and finishes the batch."""
        # Those with an answer fail too, and the runner ignores that: it takes the first answer, and nothing after the
        # final one.
        self.outcomes.extend(Outcome(i, error, True) for i in range(len(self.requests)))
        self.finished()

    def take(self) -> list[Outcome]:
        """Takes out the outcomes so far. Other threads may append more meanwhile."""
        # Only what was copied is deleted, so that no outcome in between is lost.
        outcomes = self.outcomes
        said = outcomes[:]
        del outcomes[: len(said)]
        return said

    def single_answers(self) -> list[Outcome]:
        """One answer for each request when the batch has finished; for requests that answer later, their first answer
        since the last call. Takes all outcomes."""
        said = self.take()
        answers: list[Outcome] = []
        # Most batches are like this, and need no bookkeeping.
        if not self._answers_given and not self.later and _is_plain(said, len(self.requests)):
            self._answers_given = True
            return said
        if not self._answers_given:
            self._answers_given = True
            answers = single_answers(said, [i for i in range(len(self.requests)) if i not in self.later])
        for outcome in said if self.later else ():
            if outcome.i in self.later:  # else it had its answer: a second one is ignored
                self.later -= {outcome.i}
                answers += single_answers([outcome], [outcome.i])
        return answers

    def times(self, now: int = 0) -> tuple[int, int, int, int]:
        """Start of the batch, end of its inputs, start of its outputs, end of the batch; or the end is `now` if the
        batch still runs. Moments that no call marked are filled in, so that the phases always add up."""
        end = now or self.compute_end
        return self.start, self.input_end or self.start, self.output_start or end, end


def _is_plain(said: Sequence[Outcome], requests: int) -> bool:
    """Whether each request of a batch was answered once, in their order."""
    return len(said) == requests and all(
        outcome.i == i and outcome.final and outcome.answer is not None for i, outcome in enumerate(said)
    )


def single_answers(outcomes: Iterable[Outcome], requests: Iterable[int]) -> list[Outcome]:
    """The answer of each of these requests of a model that gives one response: that response, an error that came before
    it, or the error about the number of responses (H50)."""
    responses: dict[int, list[Outcome]] = {i: [] for i in requests}
    for outcome in outcomes:
        if outcome.i in responses and (outcome.answer is not None or outcome.again):
            responses[outcome.i].append(outcome)
    return [_single(i, said) for i, said in responses.items()]


def _single(i: int, said: list[Outcome]) -> Outcome:
    # An error that comes after a response is not the answer, but does not count as a second response either.
    if said and (isinstance(said[0].answer, Error) or said[0].again):
        return said[0] if said[0].final else replace(said[0], final=True)
    responses = [outcome for outcome in said if not isinstance(outcome.answer, Error)]
    if len(responses) == 1:
        return replace(responses[0], final=True)
    return Outcome(i, Internal(f"expected a single response, got {len(responses)}"), True)


def response_of(
    outputs: Sequence[Tensor], parameters: Parameters | None, inference: Inference, config: RunnerConfig
) -> InferResponse:
    """The response with the requested outputs, in the shape that clients see. Raises Internal for an output that the
    configuration does not have, or has with another datatype."""
    wanted, restore, types = inference.outputs, config.restore, config.datatypes
    kept = []
    for tensor in outputs:
        if tensor.name in wanted:
            kept.append(tensor if restore is None else restore(tensor))
        if types.get(tensor.name) is not tensor.datatype and config.checks_outputs:
            raise unexpected_output(tensor.name, tensor.datatype, types)
    return InferResponse(inference.request.id, config.model_name, config.model_version, kept, parameters)
