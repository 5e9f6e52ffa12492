"""An ensemble whose members answer when the test says so."""

from collections.abc import Callable, Sequence
from typing import Any

from halimede.errors import Error
from halimede.requests import Answer, InferRequest, InferResponse, Parameters, Reply, Stamp
from halimede.scheduling.ensemble import EnsembleRunner
from halimede.scheduling.inference import RUNNING, SETTLED, Inference, State
from halimede.scheduling.step_binding import Binding, BoundStep, EnsembleRunnerConfig, Fitting
from halimede.scheduling.step_graph import StepGraph, StepLinks
from halimede.tensors import INT32, HostMemory, Shape, Tensor
from tests.fakes import RecordingObserver, RecordingReply, Watched


def tensor(name: str, value: str = "", shape: Shape = (1,)) -> Tensor:
    return Tensor(name, INT32, shape, HostMemory(Watched(value.encode())))


class Member:
    """A model: keeps what it is asked; `answer` and `fail` are called by the test, or at once by `answers`."""

    def __init__(self, decoupled: bool = False, answers: Callable[["Member", int], None] | None = None) -> None:
        self.decoupled = decoupled
        self.asked: list[Inference] = []
        self.cancelled: list[Inference] = []
        self.held = 0
        self.refuses: Error | None = None
        self.writable: list[bool] = []
        self._answers = answers

    def infer(self, key: int, request: InferRequest, reply: Reply, start: int) -> Inference:
        if self.refuses is not None:
            raise self.refuses
        return Inference(key, request, reply, 0, request.outputs)

    def submit(self, inference: Inference) -> None:
        inference.state = RUNNING
        self.asked.append(inference)
        if self._answers is not None:
            self._answers(self, len(self.asked) - 1)

    def cancel(self, inference: Inference) -> None:
        self.cancelled.append(inference)

    def is_queued(self, inference: Inference) -> bool:
        return inference.state is State.QUEUED

    def blockers_of(self, inference: Inference) -> Sequence[object]:
        return (self,)

    def hold(self) -> None:
        self.held += 1

    def let_go(self) -> None:
        self.held -= 1

    # For the test.

    def seen(self, i: int = -1) -> dict[str, bytes]:
        return {name: bytes(each.memory.host()) for name, each in self.asked[i].request.inputs.items()}

    def say(self, i: int, answer: Answer, final: bool = True) -> None:
        inference = self.asked[i]
        if final:
            inference.state = SETTLED
            inference.times[Stamp.COMPUTE_START :] = [1000, 1010, 1030, 1060]
        self.writable.append(inference.reply.send(answer, final))

    def answer(self, i: int = -1, final: bool = True, parameters: Parameters | None = None, **outputs: str) -> None:
        made = [tensor(name, value) for name, value in outputs.items()]
        self.say(i, InferResponse("", "m", 1, made, parameters), final)

    def fail(self, error: Error, i: int = -1) -> None:
        self.say(i, error)


class Rig:
    """An ensemble of these members: `steps` are the member and words like `X=x` for its inputs and its outputs."""

    def __init__(
        self,
        *steps: tuple[Member, str, str],
        inputs: str = "IN",
        outputs: str = "OUT",
        most: int = 0,
        fitting: Fitting | None = None,
    ) -> None:
        links = [
            StepLinks(*(tuple((w.split("=")[0], w.split("=")[1]) for w in words.split()) for words in step[1:]))
            for step in steps
        ]
        graph = StepGraph(inputs.split(), outputs.split(), links)
        members = [member for member, _, _ in steps]
        bound = tuple(
            BoundStep(
                member,
                f"m{i}",
                1,
                tuple((name, number, fitting) for name, number in graph.reads[i]),
                member.decoupled,
            )
            for i, member in enumerate(members)
        )
        binding = Binding(bound, dict.fromkeys(outputs.split()), tuple(dict.fromkeys(members)))
        self.members = members
        self.changes = 0
        self.bound = 0
        self.broken: Error | None = None
        self.settled: list[Inference] = []
        self.observer = RecordingObserver()
        self.outputs = tuple(outputs.split())
        self.inputs = inputs.split()

        def bind() -> Binding:
            self.bound += 1
            if self.broken is not None:
                raise self.broken
            return binding

        config = EnsembleRunnerConfig(
            "e", 1, graph, any(m.decoupled for m in members), most, bind, lambda: self.changes
        )
        self.runner = EnsembleRunner(config, self.observer, self.settled.append)

    def ask(
        self, outputs: str = "", reply: RecordingReply | None = None, **more: Any
    ) -> tuple[Inference, RecordingReply]:
        request = InferRequest("e")
        request.inputs = {name: tensor(name, name.lower()) for name in self.inputs}
        for field, value in more.items():
            setattr(request, field, value)
        reply = reply or RecordingReply()
        inference = Inference(7, request, reply, 0, tuple(outputs.split()) or self.outputs)
        self.runner.submit(inference)
        return inference, reply

    @property
    def idle(self) -> bool:
        """Nothing is held, and nothing waits."""
        return not any(member.held for member in self.members) and not any(self.runner.in_flight)


def values(answer: Answer) -> dict[str, bytes]:
    assert isinstance(answer, InferResponse), answer
    return {each.name: bytes(each.memory.host()) for each in answer.outputs}


def final(reply: RecordingReply) -> Answer:
    answer, is_final = reply.answers[-1]
    assert is_final
    assert not any(is_final for _, is_final in reply.answers[:-1])
    return answer


def chain(first: Member, second: Member, **more: Any) -> Rig:
    return Rig((first, "X=IN", "Y=mid"), (second, "X=mid", "Y=OUT"), **more)
