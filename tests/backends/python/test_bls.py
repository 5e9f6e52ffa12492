"""Python models, in real worker processes and in this one, that call other models, which the test plays (P50
to P53, D14).
"""

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halimede.backends.api import BackendContext
from halimede.backends.python.backend import PythonBackend, PythonInstance
from halimede.custom_metrics import CustomMetrics
from halimede.errors import Cancelled, Error, Internal
from halimede.requests import InferRequest, InferResponse, Reply
from halimede.tensors import INT32, array_of, tensor_of
from tests.backends.fakes import asked
from tests.backends.python_rig import ASYNCHRONOUS, SCRIPTED, InProcessRig, Rig, folder, scripted
from tests.workers.fakes import PATIENCE, FakeRequest, on_loop, turning_loop

Done = Callable[[Error | None], None]

CALLS = """
    def call(*numbers, model="twice", decoupled=False, **fields):
        request = pb_utils.InferenceRequest(
            model_name=model,
            requested_output_names=["OUTPUT0"],
            inputs=[pb_utils.Tensor("INPUT0", np.array(numbers, np.int32))],
            **fields,
        )
        return request.exec(decoupled)

    def told(response):
        return response.error().message() if response.has_error() else response.output_tensors()[0].as_numpy().tolist()
"""
"""What a scripted model can say for short."""


class OtherModels:
    """A server with three models, on the loop: `twice` doubles, `stream` answers 0, 1, ... below its input, `never`
    does not answer until it is cancelled. Everything else is not ready."""

    def __init__(self) -> None:
        self.asked: list[InferRequest] = []
        self.waiting: dict[int, Reply] = {}
        self.changed = threading.Condition()
        self.metrics = CustomMetrics()
        self._key = 0

    def infer(self, request: InferRequest, reply: Reply) -> int:
        with self.changed:
            self.asked.append(request)
            self._key += 1
            key = self._key
            numbers = array_of(request.inputs["INPUT0"]) if "INPUT0" in request.inputs else np.zeros(1, np.int32)
            if request.model_name == "never":
                self.waiting[key] = reply
            elif request.model_name == "stream":
                for i in range(int(numbers[0])):
                    reply.send(answered(np.array([i], np.int32)), False)
                reply.send(None, True)
            elif request.model_name == "twice":
                reply.send(answered(numbers * 2), True)
            else:
                refusal = Internal("unknown")
                refusal.refused = True
                reply.send(refusal, True)
            self.changed.notify_all()
            return key

    def cancel(self, key: int) -> None:
        with self.changed:
            reply = self.waiting.pop(key, None)
            self.changed.notify_all()
        if reply is not None:
            reply.send(Cancelled("Cancelled"), True)

    def wait_until(self, holds: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(holds, PATIENCE), f"{len(self.asked)} asked, {len(self.waiting)} wait"

    def is_queued(self, key: int) -> bool:
        return False

    def preempt_turn(self, key: int) -> bool:
        return False

    def instances_of(self, key: int) -> Sequence[object]:
        return ()

    def serves(self, model: str, version: int) -> bool:
        return model == "twice"

    def similar_to(self, model: str) -> str:
        return ""

    def is_ready(self, model: str, version: int, done: Callable[[bool], None]) -> None:
        done(model == "twice")

    def load(self, model: str, config: str | None, files: Sequence[tuple[str, bytes]], asker: str, done: Done) -> None:
        done(None if model == "twice" else Internal(f"no '{model}' for '{asker}'"))

    def unload(self, model: str, dependents: bool, asker: str, done: Done) -> None:
        done(None)


def answered(numbers: Any) -> InferResponse:
    return InferResponse("", "inner", 1, [tensor_of("OUTPUT0", INT32, numbers)])


class Bls(Rig):
    """A backend whose models can call `others`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.others = OtherModels()
        self.backend = PythonBackend(BackendContext(loop, {}, self.others))


class InProcessBls(InProcessRig, Bls):
    """The same for models in this process."""


@pytest.fixture(params=[Bls, InProcessBls], ids=["process", "in_process"])
def rig(request: pytest.FixtureRequest) -> Iterator[Bls]:
    with turning_loop() as loop:
        made = request.param(loop)
        yield made
        made.backend.close()


@pytest.fixture
def instance(rig: Bls, tmp_path: Path) -> Iterator[PythonInstance]:
    made = rig.start(folder(tmp_path, SCRIPTED + CALLS))
    yield made
    made.close()


def said(rig: Rig, instance: PythonInstance, source: str) -> Any:
    """What a scripted `execute` assigns to `found`."""
    script = source + "\nimport json\nreturned = [R([T([json.dumps(found)])])]"
    responses = rig.run(instance, scripted(script))
    assert not responses.failed, responses.failed
    text: bytes = responses.arrays()["OUTPUT0"][0]
    return eval(text.decode(), {"true": True, "false": False, "null": None})


def test_model_calls_another_one(rig: Bls, instance: PythonInstance) -> None:
    assert said(rig, instance, "found = told(call(1, 2, request_id='r'))") == [2, 4]
    assert (rig.others.asked[0].id, rig.others.asked[0].inner) == ("r", True)


def test_large_tensors_come_and_go(rig: Bls, instance: PythonInstance) -> None:
    source = """
big = told(call(*range(1 << 17)))
found = [len(big), big == list(range(0, 2 << 17, 2))]
"""
    assert said(rig, instance, source) == [1 << 17, True]


def test_model_reads_a_stream(rig: Bls, instance: PythonInstance) -> None:
    source = """
stream = call(3, model="stream", decoupled=True)
once = [len(r.output_tensors()) for r in stream]
found = [once, [told(r) for r in list(stream)[:-1]]]
"""
    assert said(rig, instance, source) == [[1, 1, 1, 0], [[0], [1], [2]]]


def test_long_stream_waits_for_its_reader(rig: Bls, instance: PythonInstance) -> None:
    """More than the window holds, so that credit must come from the worker; this server does not stop by itself."""
    assert said(rig, instance, "found = len(list(call(3000, model='stream', decoupled=True)))") == 3001


def test_threads_call_at_once(rig: Bls, instance: PythonInstance) -> None:
    source = """
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(8) as pool:
    found = list(pool.map(lambda i: told(call(i)), range(64)))
"""
    assert said(rig, instance, source) == [[2 * i] for i in range(64)]


def test_coroutines_call_at_once(rig: Bls, instance: PythonInstance) -> None:
    source = """
import asyncio
def begin(i):
    return pb_utils.InferenceRequest(
        model_name="twice", requested_output_names=[], inputs=[pb_utils.Tensor("INPUT0", np.array([i], np.int32))]
    ).async_exec()
async def several():
    return [told(r) for r in await asyncio.gather(*(begin(i) for i in range(64)))]
found = asyncio.run(several())
"""
    assert said(rig, instance, source) == [[2 * i] for i in range(64)]


@pytest.mark.parametrize("decoupled", [False, True])
def test_asynchronous_model_calls(rig: Bls, tmp_path: Path, decoupled: bool) -> None:
    """Its event loop is in another thread than the one that takes the batches."""
    instance = rig.start(folder(tmp_path, ASYNCHRONOUS + CALLS), decoupled=decoupled)
    source = """
        def begin(i):
            inputs = [pb_utils.Tensor("INPUT0", np.array([i], np.int32))]
            return pb_utils.InferenceRequest(model_name="twice", requested_output_names=[], inputs=inputs).async_exec()
        answers = [told(r)[0] for r in await asyncio.gather(*map(begin, range(20)))]
        response = R([T(answers)])
    """
    expected = [2 * i for i in range(20)]
    if decoupled:
        sends = "\n        requests[0].get_response_sender().send(response, 1)"
        assert rig.stream(instance, scripted(source + sends)).wait().said == [[(expected, True)]]
    else:
        responses = rig.run(instance, scripted(source + "\n        return [response]"))
        assert responses.arrays()["OUTPUT0"].tolist() == expected
    instance.close()


def test_decoupled_model_calls_from_a_thread_after_execute(rig: Bls, tmp_path: Path) -> None:
    instance = rig.start(folder(tmp_path, SCRIPTED + CALLS), decoupled=True)
    source = """
        def later(sender):
            sender.send(R([T(told(call(4)))]), 1)
        threading.Thread(target=later, args=(requests[0].get_response_sender(),)).start()
    """
    assert rig.stream(instance, scripted(source)).wait().said == [[([8], True)]]
    instance.close()


def test_models_are_asked_for(rig: Bls, instance: PythonInstance) -> None:
    source = """
found = [pb_utils.is_model_ready("twice"), pb_utils.is_model_ready("other", "1"), pb_utils.load_model("twice")]
try:
    pb_utils.load_model("other")
except pb_utils.TritonModelException as error:
    found.append(str(error))
"""
    text = "Failed to load model: Failed to process the request for model 'm_0_0', message: no 'other' for ''"
    assert said(rig, instance, source) == [True, False, None, text]


# ---- before and after the batches


INITIALIZES = """
    import threading
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            threads = [threading.Thread(target=self.ask, args=(i,)) for i in range(4)]
            self.found = {}
            self.ask(9)
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.found[-1] = int(pb_utils.is_model_ready("twice"))

        def ask(self, i):
            self.found[i] = call(i).output_tensors()[0].as_numpy()[0]

        def execute(self, requests):
            found = np.array([self.found[i] for i in sorted(self.found)], np.int32)
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", found)]) for _ in requests]
"""


def test_model_calls_while_it_is_initialized(rig: Bls, tmp_path: Path) -> None:
    instance = rig.start(folder(tmp_path, INITIALIZES + CALLS))
    assert rig.run(instance, FakeRequest()).arrays()["OUTPUT0"].tolist() == [1, 0, 2, 4, 6, 18]
    instance.close()


def test_load_that_asks_for_a_model_says_who_asks(rig: Bls, tmp_path: Path) -> None:
    source = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            pb_utils.load_model("other")
    """
    with pytest.raises(Internal, match="message: no 'other' for 'm'"):
        rig.start(folder(tmp_path, source))


def test_thread_goes_on_calling_from_initialize_on(rig: Bls, tmp_path: Path) -> None:
    """Its frames come before, with and after the one that says that the model is ready."""
    source = """
    import contextlib, itertools, threading
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            self.reached = threading.Event()
            threading.Thread(target=self.ask, daemon=True).start()

        def ask(self):
            with contextlib.suppress(Exception):  # such as that the model is being unloaded
                for i in itertools.count():
                    assert call(i).output_tensors()[0].as_numpy().tolist() == [2 * i]
                    if i == 300:
                        self.reached.set()

        def execute(self, requests):
            here = np.array([self.reached.wait(20)])
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", here)]) for _ in requests]
    """
    instance = rig.start(folder(tmp_path, source + CALLS))
    assert rig.run(instance, FakeRequest()).arrays()["OUTPUT0"].tolist() == [True]
    instance.close()


@pytest.mark.parametrize("rig", [Bls], ids=["process"], indirect=True)
def test_model_that_dies_in_initialize_takes_its_calls_along(rig: Bls, tmp_path: Path) -> None:
    source = """
    import os, threading
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            threading.Thread(target=lambda: call(1, model="never"), daemon=True).start()
            call(1)
            os._exit(1)
    """
    with pytest.raises(Internal, match="is not healthy"):
        rig.start(folder(tmp_path, source + CALLS))
    rig.others.wait_until(lambda: not rig.others.waiting)


@pytest.mark.parametrize(
    ("when", "source"),
    [
        pytest.param("complete", "def auto_complete_config(config): tell(); return config", id="auto_complete_config"),
        pytest.param("finish", "def finalize(self): tell()", id="finalize"),
    ],
)
def test_calls_are_refused_where_no_model_may_count_on_others(rig: Bls, tmp_path: Path, when: str, source: str) -> None:
    told = tmp_path / "told"
    model = f"""
    import numpy as np
    import triton_python_backend_utils as pb_utils

    def tell():
        try:
            call(1)
        except pb_utils.TritonModelException as error:
            open({str(told)!r}, "w").write(str(error))

    class TritonPythonModel:
        {"@staticmethod" if when == "complete" else ""}
        {source}
        def execute(self, requests): pass
    """
    where = folder(tmp_path, model + CALLS)
    if when == "complete":
        rig.backend.describe(asked(), where, "")
    else:
        rig.start(where).close()
    assert told.read_text() == "BLS is only supported during the 'execute' function."


# ---- the end of calls


@pytest.mark.parametrize("rig", [Bls], ids=["process"], indirect=True)
def test_calls_of_a_worker_that_dies_are_cancelled(rig: Bls, instance: PythonInstance) -> None:
    source = (
        "[threading.Thread(target=lambda: call(1, model='never')).start() for _ in range(3)]; call(1, model='never')"
    )
    responses = rig.begin(instance, scripted(source))
    rig.others.wait_until(lambda: len(rig.others.waiting) == 4)
    os.kill(instance.pid, signal.SIGKILL)
    assert "is not healthy" in responses.wait().failed[0].message
    rig.others.wait_until(lambda: not rig.others.waiting)


def test_calls_of_a_model_that_is_closed_are_cancelled(rig: Bls, instance: PythonInstance) -> None:
    source = """
def ask():
    try:
        call(1, model="never")
    except OSError:  # the model is being unloaded
        pass
threading.Thread(target=ask, daemon=True).start()
returned = [R([])]
"""
    rig.run(instance, scripted(source))
    rig.others.wait_until(lambda: len(rig.others.waiting) == 1)
    instance.close()
    rig.others.wait_until(lambda: not rig.others.waiting)


def test_calls_end_with_the_request_that_they_are_made_for(rig: Bls, instance: PythonInstance) -> None:
    request = scripted("returned = [R([T([told(call(1, model='never'))])])]")
    responses = rig.begin(instance, request)
    rig.others.wait_until(lambda: len(rig.others.waiting) == 1)
    on_loop(rig.loop, request.cancel)
    assert responses.wait().arrays()["OUTPUT0"].tolist() == [b"Cancelled"]


def test_coroutine_that_gives_up_cancels_its_call(rig: Bls, instance: PythonInstance) -> None:
    source = """
import asyncio
async def give_up():
    request = pb_utils.InferenceRequest(model_name="never", requested_output_names=[], inputs=[])
    try:
        await asyncio.wait_for(request.async_exec(), 0.05)
    except asyncio.TimeoutError:
        return told(call(5))
found = asyncio.run(give_up())
"""
    assert said(rig, instance, source) == [10]
    rig.others.wait_until(lambda: not rig.others.waiting)


@pytest.mark.parametrize("rig", [Bls], ids=["process"], indirect=True)
def test_forked_child_of_a_model_disturbs_no_call(rig: Bls, instance: PythonInstance) -> None:
    source = """
child = os.fork()
if not child:
    os._exit(0)
os.waitpid(child, 0)
found = told(call(1))
"""
    assert said(rig, instance, source) == [2]
