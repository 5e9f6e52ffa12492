"""Backends in child processes: the same modules as in the server, over frames."""

import asyncio
import logging
import os
import pickle
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

from halimede.backends.api import Responses
from halimede.backends.child.backend import ChildBackend, visible_devices
from halimede.backends.child.order import read, read_error
from halimede.backends.creation import create_backend
from halimede.backends.registry import traits_of
from halimede.backends.traits import DeviceKind, Traits
from halimede.cli.log_lines import TritonFormatter
from halimede.config.model_config import InstanceGroup, InstanceKind, ModelConfig
from halimede.errors import ADVICE, Cause, Internal, Invalid, Unsupported
from halimede.platform.hosts import HostPolicy
from halimede.platform.processes import ends_within
from halimede.platform.worker_poller import WorkerPoller
from halimede.tensors import DATATYPES, Tensor, tensor_of
from halimede.workers.child.segments import LEAST_BYTES
from tests.backends import onnx_models
from tests.backends.child.odd import TRAITS
from tests.backends.fakes import asked, context, folder, idle_loop, model_config, place, spec
from tests.processes import ended, open_descriptors
from tests.rights import open_folder
from tests.workers.fakes import (
    PATIENCE,
    FakeBatch,
    FakeRequest,
    FakeResponses,
    FakeStream,
    on_loop,
    text_tensor,
    turning_loop,
)

R = TypeVar("R", bound=Responses)
ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Children import the backend of this folder."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    with turning_loop() as turning:
        yield turning


class ChildRig:
    """A backend in child processes, on a loop that turns."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str = "odd", **settings: str) -> None:
        self.loop = loop
        traits = TRAITS if name == "odd" else traits_of(name)
        assert traits is not None
        self.backend = create_backend(traits, context(loop, {"home": "child", **settings}))

    def start(self, config: ModelConfig, where: Path, model: bytes | None = None, **placing: Any) -> Any:
        return self.backend.open(config, folder(where, model)).create_instance(place(**placing))

    def begin(self, instance: Any, responses: R, *requests: FakeRequest) -> R:
        on_loop(self.loop, lambda: instance.execute(FakeBatch(*requests), responses))
        return responses

    def run(self, instance: Any, *requests: FakeRequest) -> FakeResponses:
        return self.begin(instance, FakeResponses(), *requests).wait()


@pytest.fixture
def rig(loop: asyncio.AbstractEventLoop) -> Iterator[ChildRig]:
    made = ChildRig(loop, **{"restart-wait-seconds": "60"})  # however busy this machine is
    yield made
    made.backend.close()


ORDERED = model_config([spec("ORDER", "BYTES", [1])], [spec("OUTPUT0", "BYTES", [1])], backend="odd")


def order(word: str, **fields: Any) -> FakeRequest:
    return FakeRequest(text_tensor("ORDER", word), **fields)


def said(responses: FakeResponses, i: int = 0) -> str:
    text: bytes = responses.arrays(i)["OUTPUT0"].reshape(-1)[0]
    return text.decode()


@pytest.fixture
def odd(rig: ChildRig, tmp_path: Path) -> Iterator[Any]:
    instance = rig.start(ORDERED, tmp_path)
    yield instance
    instance.close()


# ---- the backends of this server


def tensor(name: str, array: Any, datatype: str = "FP32") -> Tensor:
    return tensor_of(name, DATATYPES[datatype], np.asarray(array, DATATYPES[datatype].numpy))


@pytest.mark.parametrize("size", [4, LEAST_BYTES], ids=["in the frame", "in shared memory"])
def test_identity_in_a_child(loop: asyncio.AbstractEventLoop, tmp_path: Path, size: int) -> None:
    rig = ChildRig(loop, "identity")
    config = model_config(
        [spec("INPUT0", "FP32", [-1]), spec("INPUT1", "BYTES", [1])],
        [spec("OUTPUT0", "FP32", [-1]), spec("OUTPUT1", "BYTES", [1])],
        max_batch_size=8,
        backend="identity",
    )
    instance = rig.start(config, tmp_path)
    for seed in range(5):
        arrays = [np.random.default_rng(seed + i).random((1, size), np.float32) for i in range(2)]
        texts = [tensor("INPUT1", np.array([[b"ab"]], dtype=object), "BYTES")] * 2
        requests = [
            FakeRequest(tensor("INPUT0", array), text, outputs=("OUTPUT0", "OUTPUT1"))
            for array, text in zip(arrays, texts, strict=True)
        ]
        responses = rig.run(instance, *requests)
        for i, array in enumerate(arrays):
            found = responses.arrays(i)
            assert found["OUTPUT0"].tolist() == array.tolist()
            assert found["OUTPUT1"].tolist() == [[b"ab"]]
        assert responses.times is not None
    # The child lets go of a batch at its end, and not when its garbage collector runs: two segments take turns.
    assert instance._worker.segments._numbers <= 3
    instance.close()
    rig.backend.close()
    assert ended(instance.pid)


def test_onnx_in_a_child_gathers_the_batch_and_scatters_its_outputs(
    loop: asyncio.AbstractEventLoop, tmp_path: Path
) -> None:
    rig = ChildRig(loop, "onnxruntime")
    config = model_config(
        [spec("a", "FP32", [2]), spec("b", "FP32", [2])],
        [spec("sum", "FP32", [2]), spec("difference", "FP32", [2])],
        max_batch_size=8,
    )
    instance = rig.start(config, tmp_path, onnx_models.add_and_subtract(["n", 2]))
    names = ("sum", "difference")
    requests = [FakeRequest(tensor("a", [[i, 2.0]]), tensor("b", [[1.0, i]]), outputs=names) for i in (3.0, 4.0)]
    responses = rig.run(instance, *requests)
    assert responses.arrays(0)["sum"].tolist() == [[4.0, 5.0]]
    assert responses.arrays(1)["difference"].tolist() == [[3.0, -2.0]]
    instance.close()
    rig.backend.close()


def test_onnx_in_a_child_describes_its_file_and_refuses_what_does_not_fit(
    loop: asyncio.AbstractEventLoop, tmp_path: Path
) -> None:
    rig = ChildRig(loop, "onnxruntime")
    model = onnx_models.add_and_subtract(["n", 2])
    described = rig.backend.describe(asked(), folder(tmp_path, model), "")
    assert [each.name for each in described.outputs] == ["sum", "difference"]  # type: ignore[union-attr]
    config = model_config([spec("X", "FP32", [2])], [spec("sum", "FP32", [2])], max_batch_size=8)
    with pytest.raises(Invalid, match="unable to load model 'm'"):
        rig.start(config, tmp_path, model)
    rig.backend.close()


# ---- what may happen in a child


def test_death_of_a_child_fails_its_batch_and_brings_another_one(rig: ChildRig, odd: Any) -> None:
    changes: list[tuple[bool, bool]] = []
    on_loop(rig.loop, lambda: odd.watch(lambda healthy, expected: changes.append((healthy, expected))))
    first = odd.pid
    failed = rig.run(odd, order("ends"), order("ends"))
    assert [str(failed.failed[i]) for i in range(2)] == ["the process of instance 'm_0_0' is not healthy"] * 2
    wait_until(rig, lambda: odd.healthy)
    assert odd.pid != first
    assert ended(first)
    assert odd.restarts == 1
    assert changes == [(False, True), (True, False)]
    assert said(rig.run(odd, order("shows"))).endswith("m_0_0")


def test_instance_that_is_broken_for_good_ends_its_child(rig: ChildRig, odd: Any) -> None:
    first = odd.pid
    assert said(rig.run(odd, order("breaks"))) == "broken", "the server has the answer before the process ends"
    wait_until(rig, lambda: odd.restarts == 1 and odd.healthy)
    assert odd.pid != first
    assert ended(first)
    assert said(rig.run(odd, order("shows"))).endswith("m_0_0")


def wait_until(rig: ChildRig, holds: Any) -> None:
    async def look() -> None:
        while not holds():
            await asyncio.sleep(0.005)

    asyncio.run_coroutine_threadsafe(asyncio.wait_for(look(), PATIENCE), rig.loop).result(PATIENCE)


def test_batch_that_takes_too_long_is_ended_with_its_child(loop: asyncio.AbstractEventLoop, tmp_path: Path) -> None:
    rig = ChildRig(loop, **{"execution-timeout-seconds": "0.3"})
    instance = rig.start(ORDERED, tmp_path)
    failed = rig.run(instance, order("hangs")).failed[0]
    assert str(failed).endswith("message: the time limit for execute is over")
    wait_until(rig, lambda: instance.healthy)
    instance.close()
    rig.backend.close()


def test_exception_of_the_backend_fails_the_batch_with_its_words(rig: ChildRig, odd: Any) -> None:
    failed = rig.run(odd, order("raises"), order("raises")).failed
    assert [type(each) for each in failed.values()] == [Internal, Internal]
    assert str(failed[0]) == "KeyError: 'nothing'"
    partly = rig.run(odd, order("refuses"), order("refuses"))
    assert (str(partly.failed[0]), type(partly.failed[0]), said(partly, 1)) == ("not this one", Invalid, "fine")


def test_everything_of_a_request_arrives(rig: ChildRig, odd: Any) -> None:
    fields = {"id": "r1", "parameters": {"k": 1.5, "b": True}, "correlation_id": "seq"}
    responses = rig.run(odd, order("parameters", **fields))
    assert said(responses) == "r1 {'k': 1.5, 'b': True} seq 1"
    assert responses.parameters[0] == {"p": 7}


def test_many_answers_arrive_in_order(loop: asyncio.AbstractEventLoop, tmp_path: Path) -> None:
    rig = ChildRig(loop)
    config = replace(ORDERED, decoupled=True)
    instance = rig.start(config, tmp_path)
    stream = rig.begin(instance, FakeStream(), order("streams")).wait()
    assert stream.said == [[([0], False), ([1], False), ([2], False), (None, True)]]
    instance.close()
    rig.backend.close()


def test_answers_wait_for_their_reader(loop: asyncio.AbstractEventLoop, tmp_path: Path) -> None:
    rig = ChildRig(loop)
    instance = rig.start(replace(ORDERED, decoupled=True), tmp_path)
    stream = FakeStream()
    stream.clogged.add(0)
    rig.begin(instance, stream, order("floods"))
    stream.wait_until(lambda: bool(stream.waiting))
    assert len(stream.said[0]) < 40
    while stream.open:
        stream.clogged.clear()
        for resume in stream.waiting:
            on_loop(loop, resume)
        stream.waiting.clear()
        stream.wait_until(lambda: not stream.open or bool(stream.waiting))
    assert len(stream.said[0]) == 1001
    instance.close()
    rig.backend.close()


@pytest.mark.parametrize(("word", "answer"), [("waits_for_the_client", "cancelled"), ("is_told", "told")])
def test_backend_learns_that_the_client_has_gone(rig: ChildRig, odd: Any, word: str, answer: str) -> None:
    request = order(word)
    responses = rig.begin(odd, FakeResponses(), request)
    on_loop(rig.loop, request.cancel)
    assert said(responses.wait()) == answer


def test_backend_on_the_event_loop(rig: ChildRig, tmp_path: Path) -> None:
    instance = rig.start(replace(ORDERED, parameters={"PLACEMENT": "loop"}), tmp_path)
    responses = rig.run(instance, order("any"), order("any"))
    assert "Thread" in said(responses, 1)
    instance.close()


def test_several_batches_are_in_flight_in_an_instance(rig: ChildRig, tmp_path: Path) -> None:
    model = rig.backend.open(replace(ORDERED, parameters={"PLACEMENT": "async"}), folder(tmp_path))
    instance: Any = model.create_instance(place())
    assert model.in_flight == 2
    first = rig.begin(instance, FakeResponses(), order("any"))
    assert not first.over
    second = rig.run(instance, order("any"))
    assert (said(first.wait()), said(second)) == ("first", "second")
    instance.close()


def test_log_of_a_child_is_in_the_server_s_log(rig: ChildRig, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    instance = rig.start(ORDERED, tmp_path)
    rig.run(instance, order("logs"))
    instance.close()
    [warning] = [each for each in caplog.records if each.levelno == logging.WARNING]
    assert warning.getMessage() == "a word of warning"
    fields = {"table": "and its rows", "model": "m", "version": 1, "instance": "m_0_0"}
    assert fields.items() <= vars(warning).items()
    assert "a word of warning (model 'm' version 1, instance 'm_0_0')" in TritonFormatter().format(warning)
    said = [each.getMessage() for each in caplog.records]
    assert f"model 'm' version 1: instance 'm_0_0' runs in process {instance.pid}" in said
    assert "closed" in said


def test_arguments_of_a_child_name_its_model_and_instance(odd: Any) -> None:
    assert "model=m version=1 instance=m_0_0" in Path(f"/proc/{odd.pid}/cmdline").read_text().split("\0")


def test_refusals_have_their_kind_and_leave_nothing(rig: ChildRig, tmp_path: Path) -> None:
    before = open_descriptors()
    with pytest.raises(Unsupported, match=r"^not this model$") as caught:
        rig.start(replace(ORDERED, parameters={"FAIL": "not this model"}), tmp_path)
    assert (type(caught.value), caught.value.cause) == (Unsupported, Cause.FILE)
    assert caught.value.advice == ADVICE[Cause.FILE]
    with pytest.raises(Internal, match="its process ended before the model was loaded"):
        rig.start(replace(ORDERED, parameters={"FAIL": "die"}), tmp_path)
    assert open_descriptors() == before


def test_reload_leaves_nothing(rig: ChildRig, tmp_path: Path) -> None:
    rig.start(ORDERED, tmp_path).close()
    before = open_descriptors()
    for _ in range(5):
        instance = rig.start(ORDERED, tmp_path)
        assert said(rig.run(instance, order("shows"))).endswith("m_0_0")
        instance.close()
        assert ended(instance.pid)
    assert open_descriptors() == before


# ---- devices and settings


def test_instance_on_a_gpu_sees_that_one_alone(rig: ChildRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,GPU-abc,7")
    found = []
    groups = (InstanceGroup("m_0", InstanceKind.GPU, gpus=(1,)), InstanceGroup("m_1", InstanceKind.CPU))
    config = replace(ORDERED, instance_groups=groups)
    for device, kind in ((0, InstanceKind.GPU), (1, InstanceKind.GPU), (0, InstanceKind.CPU)):
        instance = rig.start(config, tmp_path, kind=kind, device_id=device)
        found.append(said(rig.run(instance, order("shows"))))
        instance.close()
    assert found == ["4 0 [[0], []] m_0_0", "GPU-abc 0 [[0], []] m_0_0", " 0 [[1], []] m_0_0"]


@pytest.mark.parametrize("kind", [InstanceKind.CPU, InstanceKind.GPU])
def test_instance_knows_its_host_policy(rig: ChildRig, tmp_path: Path, kind: InstanceKind) -> None:
    core = min(os.sched_getaffinity(0))
    instance = rig.start(ORDERED, tmp_path, kind=kind, host=HostPolicy(cores=frozenset({core})))
    assert said(rig.run(instance, order("cores"))) == f"[{core}]"
    instance.close()


def test_gpus_keep_their_numbers_without_a_choice_of_the_server() -> None:
    gpu = place(kind=InstanceKind.GPU, device_id=2)
    assert [visible_devices(each, gpu) for each in (None, "0,1", "a,b,c")] == ["2", "2", "c"]
    assert visible_devices("0,1", place()) == ""


def test_methods_of_the_backend_run_in_a_child(loop: asyncio.AbstractEventLoop, tmp_path: Path) -> None:
    rig = ChildRig(loop, color="red")
    assert rig.backend.usable_gpus([0, 1, 2, 3]) == [1, 3]
    assert rig.backend.usable_gpus([]) == ()
    described = rig.backend.describe(asked(), folder(tmp_path), "f")
    assert described.warnings[0] == "m f ['color']"  # type: ignore[union-attr]
    rig.backend.close()


def test_backend_for_the_cpu_is_not_asked_for_gpus_in_a_child(loop: asyncio.AbstractEventLoop) -> None:
    traits = replace(TRAITS, implementation="nowhere:Nothing", devices=frozenset({DeviceKind.CPU}))
    backend = create_backend(traits, context(loop, {"home": "child"}))
    assert backend.usable_gpus([0, 1]) == ()
    backend.close()


@pytest.mark.parametrize("serves", [True, False], ids=["server", "command"])
def test_command_that_looks_at_models_has_one_child_for_a_backend(
    loop: asyncio.AbstractEventLoop, tmp_path: Path, serves: bool
) -> None:
    poller = WorkerPoller() if serves else None
    backend = create_backend(TRAITS, replace(context(loop, {"home": "child"}), worker_poller=poller))

    def pid(model: str) -> int:
        described: Any = backend.describe(replace(asked(), name=model), folder(tmp_path), "f")
        assert described.warnings[0].startswith(f"{model} f")
        return int(described.warnings[1])

    first, second = pid("m"), pid("n")
    assert (first == second) is not serves
    with pytest.raises(Invalid, match=r"^a bad model$"):
        pid("bad")
    third = pid("m")
    assert third != second
    backend.close()
    assert all(ends_within(each, PATIENCE) for each in (first, second, third))


def test_backend_gets_the_same_settings_in_both_homes(loop: asyncio.AbstractEventLoop, tmp_path: Path) -> None:
    settings = {"restart-wait-seconds": "1", "execution-timeout-seconds": "5", "color": "red"}
    for home in ("server", "child"):
        backend = create_backend(TRAITS, context(loop, {"home": home, **settings}))
        described = backend.describe(asked(), folder(tmp_path), "f")
        assert described.warnings[0] == "m f ['color']"  # type: ignore[union-attr]
        backend.close()


def test_bad_setting_of_the_backend_is_refused_with_its_words(loop: asyncio.AbstractEventLoop, tmp_path: Path) -> None:
    rig = ChildRig(loop, bad="yes")
    with pytest.raises(Invalid, match=r"^a bad setting$"):
        rig.start(ORDERED, tmp_path)
    rig.backend.close()


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"home": "nowhere"}, "the setting 'home' of backend 'odd' must be 'server' or 'child', not 'nowhere'"),
        ({"home": "child", "restart-wait-seconds": "x"}, "restart-wait-seconds must be a number of seconds"),
    ],
)
def test_setting_that_makes_no_sense_is_refused(settings: Mapping[str, str], text: str, tmp_path: Path) -> None:
    with idle_loop() as idle, pytest.raises(Invalid, match=text):
        create_backend(TRAITS, context(idle, settings)).open(ORDERED, folder(tmp_path))


def test_parameter_of_a_model_goes_before_the_setting(loop: asyncio.AbstractEventLoop, tmp_path: Path) -> None:
    in_server = create_backend(TRAITS, context(loop))
    child = in_server.open(replace(ORDERED, parameters={"HOME": "child"}), folder(tmp_path))
    here = ChildRig(loop).backend.open(replace(ORDERED, parameters={"HOME": "server"}), folder(tmp_path))
    assert [type(each).__name__ for each in (child, here)] == ["ChildModel", "OddModel"]
    with pytest.raises(Invalid, match="model 'm': the parameter 'HOME' must be 'server' or 'child', not 'x'"):
        in_server.open(replace(ORDERED, parameters={"HOME": "x"}), folder(tmp_path))
    in_server.close()


def test_backend_without_a_child_home_runs_in_the_server() -> None:
    traits = Traits("odd", TRAITS.implementation)
    with idle_loop() as idle:
        assert type(create_backend(traits, context(idle))).__name__ == "OddBackend"
        assert not isinstance(create_backend(traits, context(idle)), ChildBackend)


# ---- in a sandbox


def test_any_backend_runs_in_a_sandbox(loop: asyncio.AbstractEventLoop) -> None:
    config = model_config([spec("x", "FP32", [2])], [spec("y", "FP32", [2])], max_batch_size=8)
    model = onnx_models.identity("FP32", ["n", 2])
    with open_folder() as where:
        rig = ChildRig(loop, "onnxruntime", sandbox="on")
        instance = rig.start(config, where, model)
        status = Path(f"/proc/{instance._worker.pid}/status").read_text()
        assert "NoNewPrivs:\t1" in status
        assert "Seccomp:\t2" in status
        request = FakeRequest(tensor("x", [[1.5, 2.5]]), outputs=("y",))
        assert rig.run(instance, request).arrays(0)["y"].tolist() == [[1.5, 2.5]]
        instance.close()
        rig.backend.close()


@pytest.mark.parametrize("choice", ["setting", "parameter"])
def test_server_is_no_home_in_a_sandbox(loop: asyncio.AbstractEventLoop, tmp_path: Path, choice: str) -> None:
    settings = {"sandbox": "on"} if choice == "setting" else {"sandbox": "on", "home": "child"}
    backend = create_backend(TRAITS, context(loop, settings))
    parameters = {} if choice == "setting" else {"HOME": "server"}
    with pytest.raises(Invalid, match="sandbox=on, which needs child processes: --backend-config=odd,home=child"):
        backend.open(replace(ORDERED, parameters=parameters), folder(tmp_path))
    backend.close()


def test_backend_without_a_child_home_has_no_sandbox() -> None:
    with idle_loop() as idle, pytest.raises(Invalid, match="runs in the server's process only"):
        create_backend(Traits("odd", TRAITS.implementation), context(idle, {"sandbox": "on"}))


class Runs:
    """What a model would send that wants its server to run something."""

    def __init__(self, call: Any, *arguments: Any) -> None:
        self._reduced = (call, arguments)

    def __reduce__(self) -> Any:
        return self._reduced


@pytest.mark.parametrize(
    "value",
    [Runs(os.system, "true"), Runs(eval, "1"), Runs(Path, "/"), [Runs(getattr, Invalid, "mro")], Runs(model_config)],
)
def test_result_that_would_run_something_is_refused(value: object) -> None:
    with pytest.raises(Internal, match="a result has no "):
        read(pickle.dumps(value))


def test_name_within_a_module_of_results_is_refused() -> None:
    for name in ("Path", "dataclass", "Protocol", "Batch.__init__", "nothing"):
        with pytest.raises(Internal, match=rf"a result has no halimede\.backends\.api\.{re.escape(name)}"):
            read(b"\x80\x04\x8c\x15halimede.backends.api\x8c" + bytes([len(name)]) + name.encode() + b"\x93.")


def test_result_that_is_no_pickle_is_an_error() -> None:
    for data in (b"", b"x", b"\x80\x04K\x01"):
        with pytest.raises(Internal, match="a child process sent a result that makes no sense"):
            read(data)
    assert read_error(pickle.dumps(1)).message == "a child process sent an error that is none"
