"""`halimede check` names what a configuration asks of a backend that cannot do it."""

from collections.abc import Sequence
from pathlib import Path

from halimede.backends.api import BackendModel, Fault, ModelFolder, Severity
from halimede.backends.traits import Completes, DeviceKind, Traits
from halimede.checking.advice import advised
from halimede.checking.model import ModelReview, review_model
from halimede.config.model_config import Incomplete, ModelConfig
from halimede.models.loader import LoadOptions
from halimede.models.repository import FoundModel

GPUS = (0, 1)
PLAIN = Traits("plain", completes=Completes.NEVER)
ABLE = Traits(
    "plain",
    completes=Completes.NEVER,
    optional_inputs=True,
    ragged=True,
    states=True,
    devices=frozenset({DeviceKind.CPU, DeviceKind.GPU}),
)

TENSORS = """
input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] } ]
"""
ASKS_FOR_ALL = """max_batch_size: 4
input [
  { name: "x" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true },
  { name: "z" data_type: TYPE_FP32 dims: [ 4 ] optional: true }
]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] } ]
batch_input [ { kind: BATCH_ELEMENT_COUNT target_name: "n" data_type: TYPE_FP32 source_input: "x" } ]
sequence_batching {
  state [ { input_name: "s" output_name: "t" data_type: TYPE_FP32 dims: [ 1 ] } ]
}
"""


class FakeBackend:
    def __init__(self, traits: Traits, takes_gpus: bool) -> None:
        self.traits = traits
        self.takes_gpus = takes_gpus

    def usable_gpus(self, gpus: Sequence[int]) -> Sequence[int]:
        return gpus if self.takes_gpus else ()

    def describe(self, asked: Incomplete, folder: ModelFolder, filename: str) -> None:
        return None

    def runs_code(self, asked: Incomplete) -> bool:
        return False

    def faults(self, *_: object) -> list[Fault]:
        return []

    def open(self, config: ModelConfig, folder: ModelFolder) -> BackendModel:
        raise NotImplementedError

    def close(self) -> None:
        """Nothing was opened."""


class FakeBackends:
    """Has one backend."""

    def __init__(self, traits: Traits, takes_gpus: bool) -> None:
        self._backend = FakeBackend(traits, takes_gpus)

    def __contains__(self, name: object) -> bool:
        return name == self._backend.traits.name

    def get(self, name: str) -> FakeBackend:
        return self._backend


def reviewed(
    folder: Path, config: str, traits: Traits, takes_gpus: bool | None = None, gpu_fallback: bool = False
) -> ModelReview:
    model = folder / "m"
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").write_text(f'backend: "plain"\n{config}')
    takes_gpus = DeviceKind.GPU in traits.devices if takes_gpus is None else takes_gpus
    options = LoadOptions(gpus=GPUS, gpu_fallback=gpu_fallback)
    return review_model(FoundModel("m", model, None), FakeBackends(traits, takes_gpus), options)


def test_abilities_that_the_backend_lacks_are_warnings(tmp_path: Path) -> None:
    problems = reviewed(tmp_path, ASKS_FOR_ALL, PLAIN).problems
    assert {each.code for each in problems} == {"backend"}
    assert sorted((each.text, each.line) for each in problems if each.severity is Severity.WARNING) == [
        ("backend 'plain' has neither batch inputs nor batch outputs, but one has the target_name 'n'", 8),
        (
            "backend 'plain' has no implicit states, so the states of sequence_batching never change: 's'",
            10,
        ),
    ]


def test_abilities_without_which_a_load_is_refused_are_errors(tmp_path: Path) -> None:
    problems = reviewed(tmp_path, ASKS_FOR_ALL, PLAIN).problems
    assert sorted((each.text, each.line) for each in problems if each.severity is Severity.ERROR) == [
        (
            "'allow_ragged_batch' is set to true for input 'x' of model 'm', but backend 'plain' has no ragged inputs",
            4,
        ),
        ("'optional' is set to true for input 'z' while the backend model doesn't support optional input", 5),
    ]


def test_abilities_that_the_backend_has_are_no_problems(tmp_path: Path) -> None:
    assert not reviewed(tmp_path, ASKS_FOR_ALL, ABLE).problems


def test_gpu_group_of_a_backend_for_cpus_is_an_error_on_a_machine_with_gpus(tmp_path: Path) -> None:
    config = TENSORS + "instance_group [ { kind: KIND_GPU }, { kind: KIND_GPU gpus: [ 1 ] }, { kind: KIND_AUTO } ]"
    problems = list(map(advised, reviewed(tmp_path, config, PLAIN).problems))
    assert [each.severity for each in problems] == [Severity.ERROR] * 2
    assert {each.instead for each in problems} == {
        "kind: KIND_CPU and no gpus; backend 'plain' runs on CPUs only",
    }


def test_gpu_group_that_a_backend_for_cpus_accepts_is_a_warning(tmp_path: Path) -> None:
    config = TENSORS + "instance_group [ { kind: KIND_GPU } ]"
    [problem] = reviewed(tmp_path, config, PLAIN, takes_gpus=True).problems
    assert (problem.severity, problem.text) == (
        Severity.WARNING,
        "backend 'plain' runs on CPUs only, but an instance_group has a GPU",
    )


def test_gpu_group_of_a_backend_for_gpus_is_no_problem(tmp_path: Path) -> None:
    config = TENSORS + "instance_group [ { kind: KIND_GPU }, { kind: KIND_GPU gpus: [ 1 ] }, { kind: KIND_AUTO } ]"
    assert not reviewed(tmp_path, config, ABLE).problems


def test_gpu_group_that_falls_back_to_the_cpu_is_a_warning(tmp_path: Path) -> None:
    config = TENSORS + "instance_group [ { kind: KIND_GPU gpus: [ 1 ] } ]"
    [problem] = reviewed(tmp_path, config, PLAIN, gpu_fallback=True).problems
    assert (problem.severity, problem.text) == (
        Severity.WARNING,
        "instance group 'm_0' asks for GPU 1 and runs on the CPU, with 1 instance",
    )
