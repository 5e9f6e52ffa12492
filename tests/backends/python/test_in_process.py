"""What is only so for Python models that run in this process: their names, their threads, memory that is not copied,
and what a process of its own would have borne. That they do what others do, the tests of both ways say.
"""

import sys
import textwrap
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest

from halimede.backends.api import InstancePlace, Placement
from halimede.config.model_config import InstanceKind
from halimede.errors import Internal, Invalid, Unsupported
from halimede.tensors import FP32, HostMemory, Memory, MemoryKind, Tensor
from halimede.workers.in_process.imports import PREFIX
from tests.backends.python_rig import SCRIPTED, InProcessRig, config, folder, scripted
from tests.fakes import FakeMemory
from tests.processes import open_descriptors
from tests.workers.fakes import PATIENCE, FakeBatch, FakeRequest, FakeResponses, on_loop, turning_loop

ONE = np.ones(1, np.float32)


@pytest.fixture
def rig() -> Iterator[InProcessRig]:
    with turning_loop() as loop:
        it = InProcessRig(loop)
        yield it
        it.backend.close()


@pytest.fixture
def instance(rig: InProcessRig, tmp_path: Path) -> Iterator[Any]:
    made = rig.start(folder(tmp_path, SCRIPTED))
    yield made
    made.close()


@pytest.fixture
def private_modules() -> Callable[[], list[str]]:
    """The modules of models that were loaded since the test began. Other tests of this process may have left some."""
    before = frozenset(sys.modules)
    return lambda: [name for name in list(sys.modules) if name.startswith(PREFIX) and name not in before]


def found(rig: InProcessRig, instance: Any, *requests: FakeRequest) -> Any:
    """The elements of the first request's OUTPUT0."""
    responses = rig.run(instance, *requests)
    assert not responses.failed, responses.failed
    return responses.arrays()["OUTPUT0"].tolist()


# ---- the way


def test_model_runs_on_its_thread_in_this_process(rig: InProcessRig, tmp_path: Path) -> None:
    where = folder(tmp_path, SCRIPTED)
    model = rig.backend.open(config(parameters={"EXECUTION": "in_process"}), where)
    assert (model.placement, model.inline_safe) == (Placement.THREAD, False)
    assert rig.backend.open(config(parameters={"EXECUTION": "process"}), where).placement is Placement.LOOP


@pytest.mark.parametrize("way", ["", "thread", "In_Process"])
def test_way_that_does_not_exist_is_refused(rig: InProcessRig, tmp_path: Path, way: str) -> None:
    with pytest.raises(Invalid, match=rf"^model 'm': .* 'EXECUTION' must be 'process' or 'in_process', not '{way}'$"):
        rig.backend.open(config(parameters={"EXECUTION": way}), folder(tmp_path, SCRIPTED))


@pytest.mark.parametrize("parameter", [("EXECUTION_ENV_PATH", "env"), ("EXECUTION_TIMEOUT_SECONDS", "1.5")])
def test_what_needs_a_process_is_refused(rig: InProcessRig, tmp_path: Path, parameter: tuple[str, str]) -> None:
    with pytest.raises(Invalid, match=f"'{parameter[0]}' needs a process of its own"):
        rig.start(folder(tmp_path, SCRIPTED), parameters=dict([parameter]))


def test_time_limit_of_the_server_has_no_effect_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with turning_loop() as loop:
        rig = InProcessRig(loop, {"execution-timeout-seconds": "1"})
        rig.start(folder(tmp_path, SCRIPTED)).close()
        assert "execution-timeout-seconds has no effect" in caplog.text
        caplog.clear()
        rig.close(rig.start(folder(tmp_path, SCRIPTED), parameters={"EXECUTION_TIMEOUT_SECONDS": "0"}))
        assert not caplog.text


# ---- names


def test_two_models_and_two_instances_share_nothing_of_their_own(
    rig: InProcessRig, tmp_path: Path, private_modules: Callable[[], list[str]]
) -> None:
    source = """
        import utils
        from . import utils as the_same
        import triton_python_backend_utils as pb_utils
        import numpy as np
        COUNT = []

        class TritonPythonModel:
            def execute(self, requests):
                import utils as late
                assert late is utils is the_same
                COUNT.append(1)
                text = f"{utils.WORD} {len(COUNT)} {pb_utils.get_model_dir()}"
                return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.array([text], object))])]
    """
    instances, expected = [], []
    for word in ("one", "two"):
        where = folder(tmp_path / word, source)
        (where.version / "utils.py").write_text(f"WORD = '{word}'")
        instances += [rig.start(where), rig.start(where)]
        expected += [f"{word} 1 {where.version}".encode()] * 2
    assert [found(rig, each, FakeRequest())[0] for each in instances] == expected
    assert {"utils", "model", "1.model"}.isdisjoint(sys.modules)
    for each in instances:
        each.close()
    assert not private_modules()


def test_model_that_cannot_be_loaded_leaves_nothing(
    rig: InProcessRig, tmp_path: Path, private_modules: Callable[[], list[str]]
) -> None:
    before = set(threading.enumerate())
    unsure = "class TritonPythonModel:\n    @property\n    def is_ready(self): raise LookupError('unsure')"
    leaving = "class TritonPythonModel:\n    def initialize(self, args): exit(3)"
    for source in ("import utils\n1 / 0", None, leaving, unsure):
        where = folder(tmp_path / str(source).replace("/", ""), source)
        (where.version / "utils.py").write_text("")
        with pytest.raises(Internal, match=r"ZeroDivisionError|not found in|SystemExit: 3|unsure"):
            rig.start(where)
    assert not private_modules()
    for thread in set(threading.enumerate()) - before:
        thread.join(PATIENCE)
        assert not thread.is_alive(), thread.name


def test_error_of_an_import_shows_frames_of_the_model_only(rig: InProcessRig, tmp_path: Path) -> None:
    where = folder(tmp_path, "import utils")
    (where.version / "utils.py").write_text("import nowhere")
    with pytest.raises(Internal) as caught:
        rig.start(where)
    lines = [line for line in caught.value.message.split("At:\n")[1].splitlines() if "<frozen" not in line]
    assert lines == [f"  {where.version}/{name}.py(1): <module>" for name in ("utils", "model")]


def test_each_instance_speaks_for_itself_also_on_borrowed_threads(
    rig: InProcessRig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Where neither the thread nor the frames on it are the model's."""
    source = """
        from concurrent.futures import ThreadPoolExecutor
        found = []
        for call in (pb_utils.get_model_dir, lambda: pb_utils.Logger.log_warn("said")):
            with ThreadPoolExecutor(1) as pool:
                found.append(str(pool.submit(call).result(20)))
        returned = [R([T([text.encode() for text in found])])]
    """
    first, second = (rig.start(folder(tmp_path / word, SCRIPTED)) for word in ("one", "two"))
    assert found(rig, first, scripted(source)) == [str(tmp_path / "one/m/1").encode(), b"None"]
    assert found(rig, second, scripted(source)) == [str(tmp_path / "two/m/1").encode(), b"None"]
    assert [record.message for record in caplog.records] == ["said", "said"]
    first.close()
    second.close()


def test_library_speaks_for_the_model_that_calls_it(
    rig: InProcessRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "halimede_test_library.py").write_text(
        "import triton_python_backend_utils as pb_utils\n"
        "def tensor(values):\n"
        "    return pb_utils.Tensor('OUTPUT0', values)\n"
        "def where():\n"
        "    assert issubclass(pb_utils.InferenceRequest, object)\n"
        "    return pb_utils.get_model_dir()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    source = """
        import halimede_test_library as library
        returned = [R([library.tensor(np.array([library.where()], object))])]
    """
    for word in ("one", "two"):
        instance = rig.start(folder(tmp_path / word, SCRIPTED))
        assert found(rig, instance, scripted(source)) == [str(tmp_path / word / "m/1").encode()]
        instance.close()
    library = sys.modules.pop("halimede_test_library")
    with pytest.raises(AttributeError, match="only for the code of a model"):
        library.where()


# ---- threads


def test_whole_life_of_a_model_is_on_one_thread(rig: InProcessRig, tmp_path: Path) -> None:
    """So that what belongs to a thread, as a connection to SQLite does, may be kept."""
    source = """
        import sqlite3, threading
        import numpy as np
        import triton_python_backend_utils as pb_utils
        IMPORTED = threading.get_ident()

        class TritonPythonModel:
            def initialize(self, args):
                self.threads = {IMPORTED, threading.get_ident()}
                self.kept = sqlite3.connect(":memory:")
                self.path = args["model_repository"] + "/seen"

            def execute(self, requests):
                self.threads.add(threading.get_ident())
                one = self.kept.execute("select 1").fetchone()
                return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.array(one, np.int32))])]

            def finalize(self):
                self.kept.close()
                open(self.path, "w").write(f"{len(self.threads | {threading.get_ident()})} {IMPORTED}")
    """
    where = folder(tmp_path, source)
    instance = rig.start(where)
    assert found(rig, instance, FakeRequest()) == [1]
    instance.close()
    number, thread = (where.model / "seen").read_text().split()
    assert number == "1"
    assert int(thread) not in (threading.get_ident(), on_loop(rig.loop, threading.get_ident))


@pytest.mark.parametrize("error", ["raise SystemExit(3)", "exit(3)", "raise KeyboardInterrupt", "raise GeneratorExit"])
def test_exit_is_an_error_of_the_request(rig: InProcessRig, instance: Any, error: str) -> None:
    failed = rig.run(instance, scripted(error)).failed
    assert type(failed[0]) is Internal
    assert failed[0].message.startswith("Failed to process the request(s) for model 'm_0_0', message: ")
    assert found(rig, instance, scripted("returned = [R([T([5])])]")) == [5]


def test_finalize_that_fails_is_logged(
    rig: InProcessRig, tmp_path: Path, caplog: pytest.LogCaptureFixture, private_modules: Callable[[], list[str]]
) -> None:
    source = SCRIPTED + "\n        def finalize(self):\n            raise SystemExit(3)\n"
    rig.start(folder(tmp_path, source)).close()
    assert "finalize of 'm_0_0' failed: SystemExit: 3" in caplog.text
    assert not private_modules()


def test_finalize_that_hangs_is_left_behind(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, private_modules: Callable[[], list[str]]
) -> None:
    source = """
        import threading
        GO = threading.Event()

        class TritonPythonModel:
            def finalize(self):
                GO.wait(20)
    """
    with turning_loop() as loop:
        rig = InProcessRig(loop, {"stub-timeout-seconds": "1"})
        instance = rig.start(folder(tmp_path, source))
        [module] = [sys.modules[name] for name in private_modules() if name.endswith(".model")]
        instance.close()
        module.GO.set()
        rig.backend.close()
    assert "finalize of 'm_0_0' takes longer than 1 s" in caplog.text


def test_initialize_that_hangs_is_left_behind_at_the_end(
    rig: InProcessRig, tmp_path: Path, private_modules: Callable[[], list[str]]
) -> None:
    source = """
        import threading
        GO, BEGUN = threading.Event(), threading.Event()

        class TritonPythonModel:
            def initialize(self, args):
                BEGUN.set()
                GO.wait(20)
    """
    with ThreadPoolExecutor(1) as pool:
        started = pool.submit(rig.start, folder(tmp_path, source))
        until = time.monotonic() + PATIENCE
        modules: list[Any] = []
        while not modules or not hasattr(modules[0], "BEGUN"):
            modules = [sys.modules[name] for name in private_modules() if name.endswith(".model")]
            assert time.monotonic() < until
        [module] = modules
        assert module.BEGUN.wait(PATIENCE)
        rig.backend.close()
        text = r"^'m_0_0' is still in initialize while the server exits; its thread is abandoned$"
        with pytest.raises(Internal, match=text):
            started.result(PATIENCE)
    module.GO.set()
    while private_modules():
        assert time.monotonic() < until


def test_background_loop_ends_with_its_model(rig: InProcessRig, tmp_path: Path) -> None:
    source = """
        import asyncio, threading
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            async def execute(self, requests):
                threading.current_thread().name = "loop of m"
                return [pb_utils.InferenceResponse([]) for _ in requests]
    """
    instance = rig.start(folder(tmp_path, source))
    assert rig.run(instance, FakeRequest()).sent == {0: []}
    [thread] = [thread for thread in threading.enumerate() if thread.name == "loop of m"]
    instance.close()
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_thread_of_a_model_has_an_event_loop_until_it_is_closed(rig: InProcessRig, tmp_path: Path) -> None:
    source = """
        import asyncio
        import numpy as np
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            async def answer(self):
                await asyncio.sleep(0)
                return pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([1]))])

            def execute(self, requests):
                loop = asyncio.get_event_loop()
                return [loop.run_until_complete(self.answer()) for _ in requests]
    """
    before = open_descriptors()
    instance = rig.start(folder(tmp_path, source))
    for _ in range(2):
        assert not rig.run(instance, FakeRequest()).failed
    instance.close()
    instance.thread._thread.join(PATIENCE)
    assert open_descriptors() <= before


def test_loop_that_a_model_runs_elsewhere_is_left_to_it(
    rig: InProcessRig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = """
        import asyncio, threading

        class TritonPythonModel:
            def initialize(self, args):
                self.loop = asyncio.get_event_loop()
                self.thread = threading.Thread(target=self.run, name="loop of m")
                self.thread.start()

            def run(self):
                try:
                    self.loop.run_forever()
                finally:
                    self.loop.close()
    """
    instance = rig.start(folder(tmp_path, source))
    model, thread = instance._model._model, instance.thread._thread
    instance.close()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert not caplog.text
    model.loop.call_soon_threadsafe(model.loop.stop)
    model.thread.join(PATIENCE)
    assert model.loop.is_closed()


# ---- memory


def asked(source: str, memory: Memory, shape: tuple[int, ...]) -> FakeRequest:
    return scripted(source, Tensor("X", FP32, shape, memory))


ADDRESS = "parameters={'address': str(array.ctypes.data)}"


def address(array: Any) -> str:
    return str(array.ctypes.data)


def test_input_is_not_copied(rig: InProcessRig, instance: Any) -> None:
    body = np.arange(100_000, dtype=np.float32)
    source = """
        x = pb_utils.get_input_tensor_by_name(requests[0], "X").as_numpy()
        x[0] = 7
        returned = [R([])]
    """
    rig.run(instance, asked(source, HostMemory(body.data.cast("B")), body.shape))
    assert body[0] == 7


@pytest.mark.parametrize("made", ["np.ones(100_000)", "np.ones((10, 10_000)).reshape(-1)", "np.ones(1 << 20)[5:]"])
def test_output_that_nobody_else_has_is_not_copied(rig: InProcessRig, instance: Any, made: str) -> None:
    source = f"""
        def answer():
            array = {made}
            return R([pb_utils.Tensor("OUTPUT0", array)], {ADDRESS})
        returned = [answer()]
    """
    responses = rig.run(instance, scripted(source))
    assert responses.parameters[0] == {"address": address(responses.arrays()["OUTPUT0"])}


@pytest.mark.parametrize(
    "kept",
    [
        "array = self.kept",
        "array = self.kept[5:]",
        "array = self.kept.reshape(10, -1)",
        "self.view = self.kept[:]; array = self.view; del self.kept",
        "self.other = memoryview(bytearray(40_000)); array = np.frombuffer(self.other, np.float32)",
        "import array as plain; self.kept = plain.array('f', [1.0] * 10_000); array = np.asarray(self.kept)",
    ],
)
@pytest.mark.parametrize("sends", [False, True], ids=["returned", "sent"])
def test_output_that_a_model_can_still_get_at_is_copied(
    rig: InProcessRig, instance: Any, kept: str, sends: bool
) -> None:
    """It may write the next answer there."""
    source = f"""
        self.kept = np.ones(10_000, np.float32)
        def answer():
            {kept}
            return R([pb_utils.Tensor("OUTPUT0", array)], {ADDRESS})
    """
    sent = "requests[0].get_response_sender().send(answer(), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)"
    script = scripted(textwrap.dedent(source) + (sent if sends else "returned = [answer()]"))
    responses = rig.run(instance, script)
    assert not responses.failed, responses.failed
    assert responses.parameters[0] != {"address": address(responses.arrays()["OUTPUT0"])}


@pytest.mark.parametrize("start", [0, 1])
def test_small_input_that_cannot_be_written_to_is_the_model_s_own(rig: InProcessRig, instance: Any, start: int) -> None:
    """Nor one that lies across the boundaries of its elements."""
    body = bytes(start) + np.arange(4, dtype=np.float32).tobytes()
    source = """
        tensor = pb_utils.get_input_tensor_by_name(requests[0], "X")
        x = tensor.as_numpy()
        x *= 2
        assert x.flags.aligned
        returned = [R([pb_utils.Tensor("OUTPUT0", tensor.as_numpy())])]
    """
    assert found(rig, instance, asked(source, HostMemory(memoryview(body)[start:]), (4,))) == [0, 2, 4, 6]
    assert body[start:] == np.arange(4, dtype=np.float32).tobytes()


def test_memory_of_a_client_is_seen_and_cannot_be_written_to(rig: InProcessRig, instance: Any) -> None:
    region = np.zeros(100_000, np.float32)
    memory = FakeMemory(region.data.cast("B").toreadonly(), MemoryKind.SHARED)
    keeps = 'self.x = pb_utils.get_input_tensor_by_name(requests[0], "X").as_numpy(); returned = [R([])]'
    rig.run(instance, asked(keeps, memory, region.shape))
    region[:] = 3
    writes = """
        try:
            self.x[0] = 1
        except ValueError as error:
            returned = [R([T([f"{self.x.sum()} {error}"])])]
    """
    text = found(rig, instance, scripted(writes))[0].decode()
    assert text.startswith("300000.0")
    assert "read-only" in text


def test_request_that_a_model_keeps_does_not_keep_the_inference(rig: InProcessRig, instance: Any) -> None:
    class Reply:
        """What hangs on an inference: a connection, say."""

    request = scripted("self.kept = list(requests); returned = [R([])]")
    reply = Reply()
    gone = weakref.finalize(reply, lambda: None)
    request.request.form = reply
    rig.run(instance, request)
    del request, reply
    rig.run(instance, scripted("assert not self.kept[0].is_cancelled(); returned = [R([])]"))
    assert not gone.alive


def test_tensor_that_the_host_cannot_read_fails_its_request_only(rig: InProcessRig, instance: Any) -> None:
    elsewhere = FakeRequest(Tensor("X", FP32, (1,), FakeMemory(ONE.tobytes(), error=Unsupported("it is elsewhere"))))
    script = scripted("returned = [R([T([len(requests), r._index])]) for r in requests]")
    mixed = rig.run(instance, script, elsewhere, FakeRequest(), elsewhere)
    assert {i: error.message for i, error in mixed.failed.items()} == {1: "it is elsewhere", 3: "it is elsewhere"}
    assert [mixed.arrays(i)["OUTPUT0"].tolist() for i in (0, 2)] == [[2, 0], [2, 2]]
    assert set(rig.run(instance, elsewhere).failed) == {0}


def test_batch_that_cannot_be_read_for_want_of_memory_is_over(rig: InProcessRig, instance: Any) -> None:
    large = FakeRequest(Tensor("X", FP32, (1,), FakeMemory(ONE.tobytes(), error=MemoryError("too large"))))
    with pytest.raises(MemoryError):  # which is what the server tells of it
        instance.execute(FakeBatch(large), FakeResponses())
    assert not instance.in_flight_batches


def test_lone_surrogates_become_question_marks(rig: InProcessRig, instance: Any) -> None:
    source = r"""
        returned = [R([], parameters={"k": "a\ud800b", "n": 1})]
    """
    responses = rig.run(instance, scripted(source))
    assert responses.parameters[0] == {"k": "a?b", "n": 1}
    assert rig.run(instance, scripted(r"raise ValueError('a\ud800b')")).failed[0].message.encode()


# ---- readiness


def test_model_has_a_say_in_its_readiness_while_it_executes(
    rig: InProcessRig, tmp_path: Path, private_modules: Callable[[], list[str]]
) -> None:
    source = SCRIPTED.replace("class", "MADE = []\n\n    class").replace("self.args = args", "MADE.append(self)")
    source += "\n        ready = True\n\n        def is_ready(self):\n            return self.ready\n"
    instance = rig.start(folder(tmp_path, source))
    assert instance.reports_readiness

    def ready() -> bool:
        answered: SimpleQueue[bool] = SimpleQueue()
        on_loop(rig.loop, lambda: instance.ask_ready(answered.put))
        return answered.get(timeout=PATIENCE)

    assert ready()
    responses = rig.begin(instance, scripted("self.ready = 5\nself.go = threading.Event()\nself.go.wait(20)"))
    until = time.monotonic() + PATIENCE
    while ready():  # until it executes: 5 is no answer
        assert time.monotonic() < until
    [model] = [sys.modules[name] for name in private_modules() if name.endswith(".model")]
    assert not responses.over
    model.MADE[0].go.set()
    responses.wait()
    instance.close()


def test_model_without_a_say_is_ready(rig: InProcessRig, instance: Any) -> None:
    said: list[bool] = []
    on_loop(rig.loop, lambda: instance.ask_ready(said.append))
    assert (instance.reports_readiness, said) == (False, [True])


def test_instance_says_its_place(rig: InProcessRig, tmp_path: Path) -> None:
    where = folder(tmp_path, SCRIPTED)
    model = rig.backend.open(config(parameters={"EXECUTION": "in_process"}), where)
    instance: Any = model.create_instance(InstancePlace("m_0_1", InstanceKind.GPU, 3, 1, 2))
    source = "a = self.args\nreturned = [R([T([' '.join(a[k] for k in sorted(a) if 'instance' in k)])])]"
    assert found(rig, instance, scripted(source)) == [b"3 GPU m_0_1"]
    instance.close()
