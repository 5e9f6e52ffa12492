"""The `onnxruntime` backend: ONNX models on the CPU or a CUDA GPU, arrays in and out without a copy.

Owns the models' sessions and the path of a batch through one; knows nothing of scheduling. Models are opened on load
threads. `execute` runs on an instance's thread, or on the event loop while it is measured to be quick.

Two choices, measured with onnxruntime 1.31 on two cores:

- All instances of a version on one device share a session, whose `run` takes any number of threads at once. Two
  threads on one session did a 384-1536-384 MLP in 150 us each, on a session each in 200 us (the weights share the
  cache); tiny and large batches were equal, and the weights lie in memory once. A session per instance buys nothing.
- `session.run` and not IOBinding: it takes contiguous arrays as they lie, and its results are views of the runtime's
  own memory, freed with the array. A small MLP takes 5 us by `run` and 9 us by IOBinding; 4 MB of output take
  116 us against 121. Only BF16, which numpy lacks, goes by IOBinding.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnxruntime as ort

from halimede.backends.api import (
    Arrays,
    BackendContext,
    BaseModel,
    Fault,
    InstancePlace,
    ModelFolder,
    Severity,
)
from halimede.backends.checks import check, problems, scalars
from halimede.backends.onnx import TRAITS
from halimede.backends.onnx.extras import NONE, Extras, extras_of, level_and_extras_of
from halimede.backends.onnx.instance import Array, OnnxInstance, Run
from halimede.backends.onnx.session import (
    ModelFile,
    SessionPlan,
    describe_session,
    find_file,
    has_cuda,
    open_session,
    plan_session,
    run_options,
    share_threads,
)
from halimede.backends.onnx.values import values_decide
from halimede.backends.parameters import Settings
from halimede.config.model_config import Description, Incomplete, InstanceGroup, InstanceKind, ModelConfig
from halimede.errors import Error, Unsupported
from halimede.platform.hosts import available_cores
from halimede.tensors import BF16, BYTES, Shape

_BFLOAT16 = 16
"""TensorProto.BFLOAT16, the runtime's number for it."""
_KEPT_PLANS = 100


class _Bits:
    """Makes numpy see a BF16 value of the runtime as 16-bit integers, and keeps it alive while an array does."""

    __slots__ = ("__array_interface__", "_value")

    def __init__(self, value: Any) -> None:
        self._value = value
        self.__array_interface__ = {
            "data": (value.data_ptr(), False),
            "shape": tuple(value.shape()),
            "typestr": "<u2",
            "version": 3,
        }


class BoundRun:
    """`session.run` for models with BF16 tensors, which `run` refuses. Text inputs cannot come this way."""

    __slots__ = ("_bits", "_session")

    def __init__(self, session: Any, bits: frozenset[str]) -> None:
        self._session = session
        self._bits = bits

    def run(self, names: list[str], arrays: Arrays, options: Any) -> list[Array]:
        """The outputs called `names`, BF16 as uint16: views of the runtime's memory."""
        binding = self._session.io_binding()
        for name, array in arrays.items():
            if name in self._bits:
                flat = np.ascontiguousarray(array).reshape(array.shape)  # it has no array without dimensions
                value = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(flat, _BFLOAT16)
                binding.bind_ortvalue_input(name, value)
            else:
                binding.bind_cpu_input(name, array)
        for name in names:
            binding.bind_output(name)
        self._session.run_with_iobinding(binding, options)
        values = zip(names, binding.get_outputs(), strict=True)
        return [np.asarray(_Bits(value)) if name in self._bits else value.numpy() for name, value in values]


class ScalarRun:
    """Runs a model with tensors without dimensions, which have some in requests and responses (BO4): sizes of 1."""

    __slots__ = ("_inputs", "_outputs", "_run")

    def __init__(self, run: Run, inputs: Mapping[str, Shape], outputs: Mapping[str, Shape]) -> None:
        self._run = run
        self._inputs, self._outputs = inputs, outputs

    def run(self, names: list[str], arrays: Arrays, options: Any) -> list[Array]:
        given = {name: array.reshape(()) if name in self._inputs else array for name, array in arrays.items()}
        values = zip(names, self._run(names, given, options), strict=True)
        return [value.reshape(self._outputs[name]) if name in self._outputs else value for name, value in values]


def run_of(session: Any, config: ModelConfig, description: Description | None = None) -> Run:
    """The function that runs batches. `session.run` first checks, in Python, whether an input is missing: 0.7 us of the
    6 that a small model takes, 2.4 of 15 after a pause. It then calls a function with the same arguments. That one is
    called directly if the server guarantees that no input is missing."""
    if description is not None:
        inputs = scalars(config.model_inputs, description.inputs)
        outputs = scalars(config.model_outputs, description.outputs)
        if inputs or outputs:
            return ScalarRun(run_of(session, config), inputs, outputs).run
    bits = frozenset(spec.name for spec in (*config.model_inputs, *config.model_outputs) if spec.datatype is BF16)
    if bits:
        return BoundRun(session, bits).run
    run: Run = session.run if _may_lack(config) else getattr(session, "_sess", session).run
    return run


def _may_lack(config: ModelConfig) -> bool:
    """Whether an input of the model may be missing in a batch: an optional one, or one that the server adds to the
    requests of sequences and that a warm-up sample must contain itself (W2)."""
    if any(spec.optional for spec in config.model_inputs):
        return True
    names = {spec.name for spec in config.model_inputs}
    return any(not names.issubset([each.name for each in sample.inputs]) for sample in config.warmup)


class OnnxModel(BaseModel):
    """A version of an ONNX model: one session per device and host policy. `open_on` opens one, on the cores of the
    calling thread."""

    def __init__(self, config: ModelConfig, open_on: Callable[[int | None, str], tuple[Any, SessionPlan]]) -> None:
        self.inline_safe = True
        self._config = config
        self._open_on = open_on
        self._sessions: dict[tuple[int | None, str], tuple[Any, SessionPlan]] = {}
        self.description: Description | None = None
        """What the file declares, once it was checked."""

    def session(self, device: int | None, host_policy: str = "") -> tuple[Any, SessionPlan]:
        """The session of a GPU, or of the CPU (None), for the groups that name this policy, opened at first need."""
        key = (device, host_policy)
        if key not in self._sessions:
            self._sessions[key] = self._open_on(device, host_policy)
        return self._sessions[key]

    def create_instance(self, place: InstancePlace) -> OnnxInstance:
        session, plan = self.session(place.device_id if place.kind is InstanceKind.GPU else None, place.host_policy)
        run = run_of(session, self._config, self.description)
        return OnnxInstance(self._config, run, run_options(plan))

    def close(self) -> None:
        self._sessions.clear()


@dataclass(frozen=True, slots=True, eq=False)
class _Kept:
    """A session that was opened to describe the model."""

    file: ModelFile
    decided: bool
    """Whether values in the input decide the work of a run."""
    plan: SessionPlan
    session: Any
    description: Description


class OnnxRuntimeBackend:
    """Opens ONNX models. A session that `describe` had to build serves the `open` that follows, if nothing changed."""

    traits = TRAITS

    def __init__(self, context: BackendContext) -> None:
        self._settings = Settings("backend config of 'onnxruntime'", context.settings)
        self._plans: dict[tuple[int | None, int, frozenset[int]], SessionPlan] = {}
        if self._settings.switch("enable-global-threadpool", False):
            share_threads(self._settings)

    def usable_gpus(self, gpus: Sequence[int]) -> Sequence[int]:
        """All, if the installed runtime has the CUDA provider. Otherwise none, and KIND_AUTO means the CPU."""
        return gpus if has_cuda() else ()

    def describe(self, asked: Incomplete, folder: ModelFolder, filename: str) -> Description:
        """The inputs and outputs that the model declares. Initializers that a request might override are left out: many
        exporters list every weight as such (R72). Raises Unsupported, Unavailable, Internal."""
        name = asked.name or folder.model.name
        level, extras = level_and_extras_of(asked)
        parameters = _of_model(name, asked.parameters)
        file = find_file(folder, filename, name)
        decided = values_decide(file.path)
        plan = self._plan(parameters, level, asked.instances, None, extras, decided)
        session = open_session(file.path, plan)
        description = describe_session(session, file.path, name)
        kept = _Kept(file, decided, plan, session, description)
        return replace(description, inputs=tuple([t for t in description.inputs if not t.optional]), opened=kept)

    def runs_code(self, asked: Incomplete) -> bool:
        """Libraries of operators are code."""
        return bool(extras_of(asked).libraries)

    def faults(self, asked: Incomplete, config: ModelConfig | None, folder: ModelFolder, filename: str) -> list[Fault]:
        """A file that is missing or not a model; inputs and outputs that differ from the configuration."""
        name = folder.model.name
        try:
            path = find_file(folder, filename, name).path
            if self.runs_code(asked):
                text = "its operators are in libraries of its own, which were not loaded"
                return [Fault(text, severity=Severity.NOTE)]
            level = 2  # no optimizations: only its inputs and outputs are read
            plan = plan_session(_of_model(name, {}), self._settings, level, 1, None)
            described = describe_session(open_session(path, plan), path, name)
        except Error as error:
            return [Fault(str(error), cause=error.cause)]
        return [] if config is None else [Fault(str(error)) for error in problems(config, described)]

    def open(self, config: ModelConfig, folder: ModelFolder) -> OnnxModel:
        """Raises Invalid if the configuration does not fit the model (R74), Unavailable, Unsupported, Internal."""
        level, extras = level_and_extras_of(config)
        parameters = _of_model(config.name, config.parameters)

        left = [folder.opened] if isinstance(folder.opened, _Kept) else []
        folder = replace(folder, opened=None)  # the model must not hold the session once it is closed
        described: list[Description] = []

        def open_on(device: int | None, host_policy: str) -> tuple[Any, SessionPlan]:
            file = find_file(folder, extras.filename_on(device, config.model_filename), config.name)
            instances = max(1, config.instances_beside(host_policy))
            kept = left.pop() if left else None
            if kept is not None and kept.file != file:
                kept = None
            decided = values_decide(file.path) if kept is None else kept.decided
            plan = self._plan(parameters, level, instances, device, extras, decided)
            # A size that was quick so far says nothing about the next request.
            model.inline_safe = model.inline_safe and not decided
            if kept is not None and kept.plan == plan:
                described.append(kept.description)
                return kept.session, plan
            session = open_session(file.path, plan)
            if not described:
                described.append(describe_session(session, file.path, config.name))
            return session, plan

        model = OnnxModel(config, open_on)
        model.session(_first_device(config.instance_groups), config.instance_groups[0].host_policy)
        check(config, described[0])
        model.description = described[0]
        datatypes = {spec.datatype for spec in (*config.model_inputs, *config.model_outputs)}
        if BF16 in datatypes and any(spec.datatype is BYTES for spec in config.model_inputs):
            raise Unsupported(f"unable to load model '{config.name}', TYPE_STRING inputs beside TYPE_BF16 do not work")
        return model

    def close(self) -> None:
        """The sessions are the models'."""

    def _plan(
        self, model: Settings, level: int | None, instances: int, device: int | None, extras: Extras, decided: bool
    ) -> SessionPlan:
        """The plan for a model. `decided`: values in the input decide the work of a run. Plans of models without
        settings of their own are kept, because they are all equal."""
        if model.values or device is not None or extras is not NONE:
            plan = plan_session(model, self._settings, level, instances, device, extras)
        else:
            key = (level, instances, available_cores())
            known = self._plans.get(key)
            plan = known or plan_session(model, self._settings, level, instances, device, extras)
            if known is None and len(self._plans) < _KEPT_PLANS:
                self._plans[key] = plan
        # The arena would keep what the largest run took until the model is unloaded. Without it a run of MiniLM takes
        # 1 to 2 % longer.
        return replace(plan, arena=False) if decided and "enable_mem_arena" not in model.values else plan


def _of_model(name: str, parameters: Mapping[str, str]) -> Settings:
    return Settings(f"unable to load model '{name}'", parameters)


def _first_device(groups: Sequence[InstanceGroup]) -> int | None:
    """The GPU of the first instance, None if that runs on the CPU."""
    first = groups[0]
    return first.gpus[0] if first.kind is InstanceKind.GPU and first.gpus else None
