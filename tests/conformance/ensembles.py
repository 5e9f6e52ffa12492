"""The repository of the ensemble cases: fast members, some that misbehave on demand, and good, bad and random ensembles
of them. It is written by code, in which a configuration is one line."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

Tensor = tuple[str, str, str]
"""Name, datatype, and the rest: dims and more."""

_IN: tuple[Tensor, ...] = (("INPUT0", "INT32", "dims: -1"),)
_OUT: tuple[Tensor, ...] = (("OUTPUT0", "INT32", "dims: -1"),)
_IN2: tuple[Tensor, ...] = (*_IN, ("INPUT1", "INT32", "dims: -1"))
_OUT2: tuple[Tensor, ...] = (*_OUT, ("OUTPUT1", "INT32", "dims: -1"))
_OPTIONAL: tuple[Tensor, ...] = (*_IN, ("INPUT1", "INT32", "dims: -1 optional: true"))

_ODD = """import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        return [self._answer(pb.get_input_tensor_by_name(request, "INPUT0").as_numpy()) for request in requests]

    def _answer(self, value):
        kind = int(value[0]) if value.size else 0
        if kind == 1:
            return pb.InferenceResponse(error=pb.TritonError("went wrong", pb.TritonError.UNAVAILABLE))
        if kind == 2:
            return pb.InferenceResponse([])
        if kind == 3:
            value = np.zeros((2, 2), np.int32)
        if kind == 4:
            value = np.zeros(2, np.float32)
        return pb.InferenceResponse([pb.Tensor("OUTPUT0", value)])
"""
_GROWS = """import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        return [self._answer(pb.get_input_tensor_by_name(request, "INPUT0").as_numpy()) for request in requests]

    def _answer(self, value):
        times = int(value[0, 0])
        value = np.repeat(value, times, axis=0) if times >= 0 else value[:, 0]
        return pb.InferenceResponse([pb.Tensor("OUTPUT0", value)])
"""
"""A batch that has each row as often as its first number says. A negative number keeps the first column only."""
_SEEN = """import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        parameters = sum(map(len, request.parameters()))
        seen = [request.correlation_id(), request.flags(), request.timeout(), len(request.request_id()), parameters]
        return pb.InferenceResponse([pb.Tensor("OUTPUT0", np.array(seen, np.int32))])
"""
_REPEAT = """import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for i in range(int(pb.get_input_tensor_by_name(request, "INPUT0").as_numpy()[0])):
                sender.send(pb.InferenceResponse([pb.Tensor("OUTPUT0", np.array([i], np.int32))]))
            sender.send(flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


@dataclass(frozen=True, slots=True)
class Step:
    model: str
    inputs: dict[str, str]
    outputs: dict[str, str]
    version: int | None = -1

    def text(self) -> str:
        version = "" if self.version is None else f"model_version: {self.version} "
        maps = "".join(
            f'{field} {{ key: "{key}" value: "{value}" }} '
            for field, pairs in (("input_map", self.inputs), ("output_map", self.outputs))
            for key, value in pairs.items()
        )
        return f'step {{ model_name: "{self.model}" {version}{maps}}}\n'


@dataclass(frozen=True, slots=True)
class Made:
    """An ensemble: the tensors of its interface, and its steps."""

    steps: tuple[Step, ...]
    inputs: tuple[Tensor, ...] = _IN
    outputs: tuple[Tensor, ...] = _OUT
    max_batch_size: int = 0
    more: str = ""
    version: str = "1"

    def text(self) -> str:
        steps = "".join(step.text() for step in self.steps)
        head = f'platform: "ensemble"\nmax_batch_size: {self.max_batch_size}\n'
        return f"{head}{_tensors(self)}ensemble_scheduling {{\n{steps}}}\n{self.more}"


@dataclass(frozen=True, slots=True)
class Member:
    inputs: tuple[Tensor, ...] = _IN
    outputs: tuple[Tensor, ...] = _OUT
    max_batch_size: int = 0
    more: str = ""
    code: str = ""

    def text(self) -> str:
        backend = "python" if self.code else "identity"
        head = f'backend: "{backend}"\nmax_batch_size: {self.max_batch_size}\ninstance_group {{ kind: KIND_CPU }}\n'
        return head + _tensors(self) + self.more


def _tensors(model: Made | Member) -> str:
    return "".join(
        f'{word} {{ name: "{name}" data_type: TYPE_{datatype} {rest} }}\n'
        for word, tensors in (("input", model.inputs), ("output", model.outputs))
        for name, datatype, rest in tensors
    )


def one(given: str, made: str, model: str = "plain", version: int | None = -1) -> Step:
    """A step with one input and one output."""
    return Step(model, {"INPUT0": given}, {"OUTPUT0": made}, version)


def two(given: Sequence[str], made: Sequence[str], model: str = "two") -> Step:
    inputs = {f"INPUT{i}": name for i, name in enumerate(given)}
    return Step(model, inputs, {f"OUTPUT{i}": name for i, name in enumerate(made)})


_DECOUPLED = "model_transaction_policy { decoupled: true }\n"
MEMBERS = {
    "plain": Member(),
    "other": Member(),
    "two": Member(_IN2, _OUT2),
    "maybe": Member(_OPTIONAL, _OUT2),
    "float": Member((("INPUT0", "FP32", "dims: -1"),), (("OUTPUT0", "FP32", "dims: -1"),)),
    "four": Member((("INPUT0", "INT32", "dims: 4"),), (("OUTPUT0", "INT32", "dims: 4"),)),
    "rank2": Member((("INPUT0", "INT32", "dims: [ -1, -1 ]"),), (("OUTPUT0", "INT32", "dims: [ -1, -1 ]"),)),
    "square": Member(
        (("INPUT0", "INT32", "dims: 4 reshape { shape: [ 2, 2 ] }"),),
        (("OUTPUT0", "INT32", "dims: 4 reshape { shape: [ 2, 2 ] }"),),
    ),
    "batch8": Member(max_batch_size=8),
    "batch4": Member(max_batch_size=4),
    "flow": Member(more=_DECOUPLED),
    "flow2": Member(more=_DECOUPLED),
    "labelled": Member(outputs=(("OUTPUT0", "INT32", 'dims: 3 label_filename: "labels.txt"'),)),
    "odd": Member(code=_ODD),
    "grows": Member(max_batch_size=8, code=_GROWS),
    "seen": Member(code=_SEEN),
    "repeat": Member(more=_DECOUPLED, code=_REPEAT),
    "broken": Member(more='default_model_filename: "none"\n'),
}

GOOD = {
    "chain": Made((one("INPUT0", "x"), one("x", "OUTPUT0", "other"))),
    "both": Made((one("INPUT0", "OUTPUT1"), one("OUTPUT1", "OUTPUT0")), outputs=_OUT2),
    "through": Made((one("INPUT0", "OUTPUT0"),), outputs=(*_OUT, ("INPUT0", "INT32", "dims: -1"))),
    "batched": Made((one("INPUT0", "x", "batch8"), one("x", "OUTPUT0", "batch8")), max_batch_size=8),
    "grown": Made((one("INPUT0", "x", "grows"), one("x", "OUTPUT0", "batch8")), max_batch_size=8),
    "grown_last": Made((one("INPUT0", "x", "batch8"), one("x", "OUTPUT0", "grows")), max_batch_size=8),
    "to_unbatched": Made((one("INPUT0", "x", "batch8"), one("x", "OUTPUT0")), max_batch_size=8),
    "to_batched": Made((one("INPUT0", "x"), one("x", "OUTPUT0", "batch8"))),
    "to_rank2": Made((one("INPUT0", "OUTPUT0", "rank2"),), max_batch_size=8),
    "to_four": Made((one("INPUT0", "x"), one("x", "OUTPUT0", "four"))),
    "reshaped": Made((one("INPUT0", "x", "square"), one("x", "OUTPUT0"))),
    "optional": Made((two(("INPUT0", "INPUT1"), ("OUTPUT0", "OUTPUT1"), "maybe"),), inputs=_OPTIONAL, outputs=_OUT2),
    "required": Made((two(("INPUT0", "INPUT1"), ("OUTPUT0", "OUTPUT1")),), inputs=_OPTIONAL, outputs=_OUT2),
    "nested": Made((one("INPUT0", "x", "chain"), one("x", "OUTPUT0", "to_four"))),
    "kept": Made((one("INPUT0", "x"), one("x", "OUTPUT0", "other")), more="response_cache { enable: true }\n"),
    "first_odd": Made((one("INPUT0", "x", "odd"), one("x", "OUTPUT0"))),
    "last_odd": Made((one("INPUT0", "x"), one("x", "OUTPUT0", "odd"))),
    "nested_odd": Made((one("INPUT0", "x", "first_odd"), one("x", "OUTPUT0"))),
    "sees": Made((one("INPUT0", "x"), one("x", "OUTPUT0", "seen"))),
    "labels": Made((one("INPUT0", "x"), one("x", "OUTPUT0", "labelled"))),
    "repeats": Made((one("INPUT0", "x", "repeat"), one("x", "OUTPUT0"))),
    "repeats_odd": Made((one("INPUT0", "x", "repeat"), one("x", "OUTPUT0", "odd"))),
    "repeats_twice": Made((one("INPUT0", "x", "repeat"), one("x", "OUTPUT0", "repeat"))),
    "repeats_both": Made((one("INPUT0", "x", "repeat"), one("x", "OUTPUT0"), one("x", "OUTPUT1")), outputs=_OUT2),
    "one_origin": Made(
        (one("INPUT0", "x", "flow"), one("x", "y"), two(("x", "y"), ("OUTPUT0", "OUTPUT1"))), outputs=_OUT2
    ),
    "first_version": Made((one("INPUT0", "OUTPUT0", version=1),)),
    "on_broken": Made((one("INPUT0", "OUTPUT0", "broken"),)),
    "on_on_broken": Made((one("INPUT0", "OUTPUT0", "on_broken"),)),
    "said_decoupled": Made((one("INPUT0", "OUTPUT0"),), more=_DECOUPLED),
}

MISFITS = {
    "datatype": Made((one("INPUT0", "x"), one("x", "OUTPUT0", "float")), outputs=(("OUTPUT0", "FP32", "dims: -1"),)),
    "datatype_in": Made((one("INPUT0", "OUTPUT0", "float"),)),
    "datatype_out": Made((one("INPUT0", "OUTPUT0"),), outputs=(("OUTPUT0", "FP32", "dims: -1"),)),
    "shape": Made(
        (one("INPUT0", "x"), one("x", "OUTPUT0", "rank2")), outputs=(("OUTPUT0", "INT32", "dims: [ -1, -1 ]"),)
    ),
    "shape_in": Made((one("INPUT0", "OUTPUT0", "four"),), inputs=(("INPUT0", "INT32", "dims: 5"),)),
    "shape_full": Made(
        (one("INPUT0", "OUTPUT0", "batch8"),), inputs=(("INPUT0", "INT32", "dims: [ -1, -1 ]"),), max_batch_size=8
    ),
    "shape_rank2": Made(
        (one("INPUT0", "OUTPUT0", "rank2"),), inputs=(("INPUT0", "INT32", "dims: [ 4, 4, 4 ]"),), max_batch_size=2
    ),
    "no_input": Made((Step("plain", {"INPUTX": "INPUT0"}, {"OUTPUT0": "OUTPUT0"}),)),
    "no_output": Made((Step("plain", {"INPUT0": "INPUT0"}, {"OUTPUTX": "OUTPUT0"}),)),
    "not_mapped": Made((one("INPUT0", "OUTPUT0", "two"),)),
    "batch_size": Made((one("INPUT0", "OUTPUT0", "batch4"),), max_batch_size=8),
    "missing": Made((one("INPUT0", "x", "nowhere"), one("x", "OUTPUT0"))),
    "version": Made((one("INPUT0", "OUTPUT0", version=3),)),
    "version_unsaid": Made((one("INPUT0", "OUTPUT0", version=None),)),
    "on_misfit": Made((one("INPUT0", "OUTPUT0", "datatype_in"),)),
    "origins": Made(
        (one("INPUT0", "x", "flow"), one("INPUT0", "y", "flow2"), two(("x", "y"), ("OUTPUT0",))),
    ),
    "origins_input": Made((one("INPUT0", "x", "flow"), two(("x", "INPUT0"), ("OUTPUT0",)))),
    "origins_out": Made((one("INPUT0", "OUTPUT0", "flow"), one("INPUT0", "OUTPUT1")), outputs=_OUT2),
    "origins_inside": Made(
        (
            one("w", "OUTPUT0"),
            two(("x", "y"), ("w",)),
            one("INPUT0", "x", "flow"),
            one("INPUT0", "y", "flow2"),
        )
    ),
    "kept_flow": Made((one("INPUT0", "x", "flow"), one("x", "OUTPUT0")), more="response_cache { enable: true }\n"),
}
"""Refused with a text that the client gets (S82, S83, S89)."""

MALFORMED = {
    "no_model": Made((one("INPUT0", "OUTPUT0", ""),)),
    "no_input_map": Made((Step("plain", {}, {"OUTPUT0": "OUTPUT0"}),)),
    "no_output_map": Made((Step("plain", {"INPUT0": "INPUT0"}, {}),)),
    "no_steps": Made(()),
    "written_twice": Made((one("INPUT0", "x"), one("INPUT0", "x"), one("x", "OUTPUT0"))),
    "input_unused": Made((one("INPUT0", "OUTPUT0"),), inputs=_IN2),
    "output_unused": Made((one("INPUT0", "OUTPUT0"),), outputs=_OUT2),
    "unconnected": Made((one("u", "OUTPUT0"), one("INPUT0", "x"), one("x", "y"))),
    "far_unconnected": Made((one("t", "q"), one("q", "OUTPUT0"), one("INPUT0", "r"), one("r", "s"))),
    "circle": Made((two(("INPUT0", "z"), ("y",)), one("y", "z"), one("z", "OUTPUT0"))),
    "itself": Made((two(("INPUT0", "OUTPUT0"), ("OUTPUT0",)),)),
    "tensor_unused": Made((two(("INPUT0", "INPUT0"), ("OUTPUT0", "spare")),)),
    "group": Made((one("INPUT0", "OUTPUT0"),), more="instance_group { kind: KIND_CPU }\n"),
    "optimized": Made((one("INPUT0", "OUTPUT0"),), more="optimization { priority: PRIORITY_MAX }\n"),
    "warm": Made(
        (one("INPUT0", "OUTPUT0"),),
        more='model_warmup { name: "s" batch_size: 1 inputs { key: "INPUT0" value { data_type: TYPE_INT32 dims: 2 '
        "zero_data: true } } }\n",
    ),
    "with_backend": Made((one("INPUT0", "OUTPUT0"),), more='backend: "identity"\n'),
}
"""Refused with a text that is in the log only (S80, S81)."""

CIRCLES = {
    "circle1": Made((one("INPUT0", "OUTPUT0", "circle2"),)),
    "circle2": Made((one("INPUT0", "OUTPUT0", "circle1"),)),
    "own_member": Made((one("INPUT0", "OUTPUT0", "own_member"),)),
}
"""The real server crashes when it reads these."""


def random_ensemble(seed: int) -> Made:
    """A graph of up to twelve steps with one or two inputs. Tensors that no step reads are outputs."""
    dice = random.Random(seed)
    given = [f"IN{i}" for i in range(dice.randint(1, 4))]
    tensors, unread, steps = list(given), set(given), []
    for i in range(dice.randint(2, 12)):
        width = dice.randint(1, 2)
        read = [dice.choice(sorted(unread) if unread and dice.random() < 0.6 else tensors) for _ in range(width)]
        made = [f"T{i}_{n}" for n in range(width)]
        steps.append(two(read, made, "two") if width == 2 else one(read[0], made[0], dice.choice(("plain", "other"))))
        unread -= set(read)
        unread |= set(made)
        tensors += made
    for i, name in enumerate(sorted(unread & set(given))):
        steps.append(one(name, f"L{i}"))
        unread = (unread - {name}) | {f"L{i}"}
    dice.shuffle(steps)
    inputs = tuple((name, "INT32", "dims: -1") for name in given)
    return Made(tuple(steps), inputs, tuple((name, "INT32", "dims: -1") for name in sorted(unread)))


RANDOM = {f"random{seed}": random_ensemble(seed) for seed in range(8)}


def write(repository: Path) -> None:
    """Writes all ensembles except the circles."""
    for name, member in MEMBERS.items():
        version = _folder(repository, name, member.text(), "1")
        if member.code:
            (version / "model.py").write_text(member.code)
    (repository / "labelled" / "labels.txt").write_text("zero\none\ntwo\n")
    (repository / "broken" / "config.pbtxt").write_text(MEMBERS["broken"].text().replace("identity", "nobackend"))
    for name, made in {**GOOD, **MISFITS, **MALFORMED, **RANDOM}.items():
        _folder(repository, name, made.text(), made.version)


def write_circles(repository: Path) -> None:
    for name, made in CIRCLES.items():
        _folder(repository, name, made.text(), made.version)


def _folder(repository: Path, name: str, config: str, version: str) -> Path:
    folder = repository / name / version
    folder.mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(config)
    return folder
