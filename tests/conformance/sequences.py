"""Scripts of requests in sequences, and how they are sent. The model waits for permission to answer, so that the same
requests wait on both servers.

The model is Python code. It logs each batch, and then waits until a file permits its next answer.
"""

import json
import queue
import re
import threading
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from tritonclient.grpc import service_pb2

from tests.conformance import rawgrpc
from tests.conformance.servers import Server

GATES = "SEQUENCE_GATES"
"""The environment variable with the folder in which models log their batches and look for permission."""
LULL = 0.3  # seconds in which nothing more begins of itself
BEGINS = 10.0  # seconds until something does that is said to
ARRIVES = 3.0  # seconds after which the server has what was sent, if that is not visible
ENDS = 1.0  # seconds until a batch that was let go has been answered
PATIENCE = 60.0
TRIES = 3
"""How often a script runs until both servers agree: on a busy machine more batches may begin after LULL."""
_ALL_BATCHES = 10**9

MODEL = """import json, os, time
import numpy as np
import triton_python_backend_utils as pb_utils

AGAIN = pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE


class TritonPythonModel:
    def initialize(self, args):
        self.folder = os.path.join(os.environ["SEQUENCE_GATES"], args["model_instance_name"])
        os.makedirs(self.folder, exist_ok=True)
        self.batches = 0
        self.left = {}

    def execute(self, requests):
        self.batches += 1
        with open(os.path.join(self.folder, "log"), "a") as log:
            log.write(json.dumps([self.seen(request) for request in requests]) + "\\n")
        while self.allowed() < self.batches:
            time.sleep(0.002)
        answers = [self.answer(request) for request in requests]
        return answers

    def allowed(self):
        try:
            with open(os.path.join(self.folder, "allowed")) as file:
                return int(file.read() or 0)
        except FileNotFoundError:
            return 0

    def seen(self, request):
        inputs = {t.name(): [str(t.as_numpy().dtype), list(t.shape()), t.as_numpy().tolist()] for t in request.inputs()}
        return {
            "id": request.request_id(),
            "sequence": request.correlation_id(),
            "flags": request.flags(),
            "outputs": sorted(request.requested_output_names()),
            "inputs": inputs,
        }

    def answer(self, request):
        values = pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy()
        value = int(values.flat[0]) if request.request_id() else 0
        if value == 666:
            return pb_utils.InferenceResponse([], pb_utils.TritonError("an evil number"))
        if value == 667:
            raise ValueError("a number beyond evil")
        if 900 <= value < 910:
            left = self.left.pop(request.request_id(), value - 900)
            if left:
                self.left[request.request_id()] = left - 1
                request.set_release_flags(AGAIN)
                return None
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", np.asarray(values, np.int32))])
"""

_ALL = """
    control_input [
      { name: "START" control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ] },
      { name: "END" control [ { kind: CONTROL_SEQUENCE_END fp32_false_true: [ 0, 2.5 ] } ] },
      { name: "READY" control [ { kind: CONTROL_SEQUENCE_READY bool_false_true: [ false, true ] } ] },
      { name: "CORRID" control [ { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } ] }
    ]"""
_READY = 'control_input [ { name: "READY" control [ { kind: CONTROL_SEQUENCE_READY int32_false_true: [ 3, 7 ] } ] } ]'


def _of_type(datatype: str) -> str:
    return _ALL.replace("TYPE_UINT64", datatype)


@dataclass(frozen=True, slots=True)
class Served:
    """A model: its batcher, and the number of its instances."""

    scheduling: str
    max_batch_size: int = 4
    instances: int = 1
    controls: str = _ALL

    @property
    def config(self) -> str:
        return f"""
            backend: "python"
            max_batch_size: {self.max_batch_size}
            input [ {{ name: "INPUT" data_type: TYPE_INT32 dims: [ -1 ] }} ]
            output [ {{ name: "OUTPUT" data_type: TYPE_INT32 dims: [ -1 ] }} ]
            instance_group [ {{ kind: KIND_CPU count: {self.instances} }} ]
            sequence_batching {{ {self.scheduling} {self.controls} }}
        """


_LONG = "max_sequence_idle_microseconds: 60000000"
_IDLE = "max_sequence_idle_microseconds: 2500000"
_PAIRS = "preferred_batch_size: [ 2 ] max_queue_delay_microseconds: 60000000"

MODELS = {
    "direct": Served(f"direct {{ }} {_LONG}"),
    "direct_too": Served(f"direct {{ }} {_LONG}"),
    "by_default": Served(_LONG, controls=_of_type("TYPE_INT32")),
    "direct_two": Served(f"direct {{ }} {_LONG}", max_batch_size=2, instances=2, controls=_of_type("TYPE_INT64")),
    "unbatched": Served(f"direct {{ }} {_LONG}", max_batch_size=0, controls=_of_type("TYPE_UINT32")),
    "no_id": Served(f"direct {{ }} {_LONG}", controls=_READY),
    "utilized": Served(f"direct {{ minimum_slot_utilization: 0.75 max_queue_delay_microseconds: 60000000 }} {_LONG}"),
    "delayed": Served(f"direct {{ minimum_slot_utilization: 1 max_queue_delay_microseconds: 1500000 }} {_LONG}"),
    "idle": Served(f"direct {{ }} {_IDLE}", max_batch_size=2),
    "direct_of_two": Served(f"direct {{ }} {_LONG}", max_batch_size=2),
    "oldest": Served(f"oldest {{ max_candidate_sequences: 4 {_PAIRS} }} {_LONG}", max_batch_size=2),
    "oldest_one": Served(f"oldest {{ max_candidate_sequences: 2 }} {_LONG}", max_batch_size=1),
    "oldest_of_one": Served(f"oldest {{ max_candidate_sequences: 1 }} {_LONG}", max_batch_size=1),
    "oldest_idle": Served(f"oldest {{ max_candidate_sequences: 1 }} {_IDLE}", max_batch_size=1),
    "iterative": Served(f"oldest {{ max_candidate_sequences: 2 }} {_LONG} iterative_sequence: true", max_batch_size=1),
}


@dataclass(frozen=True, slots=True)
class Script:
    """A script. `phases` are: requests that are sent together, how many batches of each instance are released
    afterwards, and how many instances then hold a batch. Several requests are sent while an instance holds a batch, or
    if they are too few for one; otherwise the first may run alone.

    A request is written `NAME:SEQUENCE` with `S` and `E` for start and end, `*` and a width, `=` and a value, `!` and a
    timeout in milliseconds, and `"` around a string id. A number alone is a pause in milliseconds.
    """

    model: str
    phases: Sequence[tuple[str, int, int]]
    rows: tuple[str, ...] = ("S61",)


SCRIPTS = {
    "one after the other": Script("direct", [("a1:1S", 1, 0), ("a2:1", 1, 0), ("a3:1E", 1, 0)], ("S58", "S61")),
    "three in their rows": Script(
        "direct_too",
        [("a1:1S", 0, 1), ("b1:2S c1:3S", 2, 0), ("c2:3", 0, 1), ("a2:1 b2:2", 1, 1), ("a3:1E b3:2E c3:3E", 2, 0)],
    ),
    "more than there are rows": Script(
        "direct",
        [
            ("a1:1S", 0, 1),
            ("b1:2S c1:3S d1:4S e1:5S f1:6S e2:5 f2:6E", 2, 0),
            ("b2:2E", 2, 1),
            ("a2:1E c2:3E d2:4E e3:5E", 4, 0),
        ],
        ("S54", "S55"),
    ),
    "a row that is free again": Script(
        "direct_too",
        [("a1:1S", 0, 1), ("b1:2S c1:3S", 2, 0), ("a2:1E", 1, 0), ("d1:4S", 0, 1), ("b2:2E c2:3E d2:4E", 2, 0)],
        ("S54",),
    ),
    "an id that is used again": Script(
        "direct", [("a1:1SE", 0, 1), ("b1:2S a2:1S", 1, 1), ("a3:1E b2:2E", 2, 0)], ("S55",)
    ),
    "an id that ended while it waited": Script(
        "direct_too",
        [("a1:1S", 0, 1), ("b1:2S c1:3S d1:4S e1:5S e2:5E e3:5S e4:5E", 1, 1), ("a2:1E b2:2E c2:3E d2:4E", 6, 0)],
        ("S55",),
    ),
    "started twice": Script("direct", [("a1:1S", 0, 1), ("a2:1 a3:1S a4:1", 3, 1), ("a5:1S a6:1E", 3, 0)], ("S53",)),
    "started twice while it waits": Script(
        "direct_too",
        [("a1:1S", 0, 1), ("b1:2S c1:3S d1:4S e1:5S e2:5S", 1, 1), ("a2:1E b2:2E c2:3E d2:4E e3:5E", 5, 0)],
        ("S53",),
    ),
    "sequences of one request": Script(
        "direct", [("a1:1SE", 0, 1), ("b1:2SE c1:3SE d1:4SE e1:5SE f1:1SE", 3, 0)], ("S54",)
    ),
    "shapes that do not fit": Script(
        "direct_too",
        [("a1:1S", 0, 1), ("b1:2S*2 c1:3S d1:4S*2", 2, 1), ("a2:1E*2 b2:2E c2:3E*2 d2:4E", 3, 0)],
        ("S61", "S4"),
    ),
    "neither started nor ended": Script(
        "direct", [("a1:1S", 1, 0), ("x:9 y:8E z:0S", 0, 0), ("a2:1E", 1, 0), ("a3:1", 0, 0)], ("S50", "S52")
    ),
    "an answer that is an error": Script(
        "direct_too",
        [("a1:1S", 0, 1), ("b1:2S=666 c1:3S", 1, 1), ("b2:2 c2:3=666 a2:1E", 1, 1), ("b3:2E c3:3E", 2, 0)],
    ),
    "a model that raises": Script("direct", [("a1:1S", 0, 1), ("b1:2S=667 c1:3S", 1, 1), ("a2:1E b2:2E c2:3E", 2, 0)]),
    "large ids": Script("by_default", [("a1:5000000007S", 1, 0), ("a2:5000000007E", 1, 0)], ("S59", "S64")),
    "ids of 64 bits": Script(
        "direct_too", [("a1:18446744073709551615S", 1, 0), ("a2:18446744073709551615E", 1, 0)], ("S59",)
    ),
    "ids of 32 bits": Script("unbatched", [("a1:5000000007S", 0, 1), ("b1:3SE a2:5000000007E", 3, 0)], ("S59",)),
    "without batches": Script(
        "unbatched", [("a1:1S", 0, 1), ("b1:2S a2:1 b2:2E", 2, 0), ("a3:1E", 3, 0)], ("S54", "S58")
    ),
    "ids of two kinds": Script(
        "no_id",
        [("a1:1S", 0, 1), ('b1:"1"S b2:"1"', 2, 1), ('a2:1E b3:"1"E c1:"one"S', 2, 0), ('c2:"one"E', 1, 0)],
        ("S50", "S58"),
    ),
    "long ids": Script(
        "no_id", [(f'x1:"{"x" * 129}"S y1:"{"y" * 128}"S', 1, 0), (f'y2:"{"y" * 128}"E', 1, 0)], ("S50",)
    ),
    "two instances": Script(
        "direct_two",
        [
            ("a1:1S", 0, 1),
            ("b1:2S", 0, 2),
            ("c1:3S d1:4S e1:5S f1:6S", 1, 2),
            ("c2:3E", 1, 1),
            ("", 1, 1),
            ("d2:4E", 0, 2),
            ("a2:1E e2:5E", 1, 2),
            ("b2:2E f2:6E", 2, 0),
        ],
        ("S54", "S59"),
    ),
    "rows that wait for others": Script(
        "utilized",
        [("a1:1S b1:2S", 0, 0), ("c1:3S", 1, 0), ("a2:1 c2:3", 0, 0), ("b2:2", 1, 0), ("a3:1E b3:2E c3:3E", 1, 0)],
        ("S62",),
    ),
    "rows that wait for a while": Script(
        "delayed", [("a1:1S b1:2S", 1, 0), ("b2:2E", 1, 0), ("a2:1E", 1, 0)], ("S62",)
    ),
    "idle": Script(
        "idle",
        [("a1:1S", 1, 0), ("b1:2S", 1, 0), ("4000", 0, 0), ("a2:1", 0, 0), ("b2:2S", 1, 0), ("b3:2E", 1, 0)],
        ("S56",),
    ),
    "idle while others wait": Script(
        "idle",
        [
            ("a1:1S", 1, 0),
            ("600", 0, 0),
            ("b1:2S", 1, 0),
            ("c1:3S d1:4S c2:3E", 0, 1),
            ("1000", 0, 1),
            ("", 2, 0),
            ("4000", 0, 0),
            ("d2:4 b2:2", 0, 0),
        ],
        ("S56",),
    ),
    "no time to wait": Script(
        "direct_of_two",
        [
            ("a1:1S", 0, 1),
            ("b1:2S c1:3S!100", 0, 1),
            ("1000", 0, 1),
            ("c2:3 d1:4SE!60000", 1, 1),
            ("a2:1E b2:2E", 3, 0),
        ],
        ("S57",),
    ),
    "the least patient of a sequence": Script(
        "direct_of_two",
        [("a1:1S", 0, 1), ("b1:2S c1:3S!60000 c2:3!1000 c3:3", 0, 1), ("2500", 0, 1), ("a2:1E b2:2E", 3, 0)],
        ("S57",),
    ),
    "oldest in pairs": Script(
        "oldest",
        [
            ("a1:1S b1:2S", 0, 1),
            ("c1:3S d1:4S a2:1 b2:2", 2, 1),
            ("c2:3 d2:4", 2, 0),
            ("b3:2E a3:1E", 1, 0),
            ("c3:3E d3:4E", 1, 0),
        ],
        ("S63",),
    ),
    "oldest of many": Script(
        "oldest",
        [
            ("a1:1S b1:2S", 0, 1),
            ("c1:3S d1:4S e1:5S f1:6S", 2, 0),
            ("a2:1E b2:2E", 1, 1),
            ("c2:3E d2:4E", 2, 0),
            ("e2:5E f2:6E", 1, 0),
        ],
        ("S54", "S55", "S63"),
    ),
    "oldest of one at a time": Script(
        "oldest", [("a1:1S b1:2S", 0, 1), ("a2:1 a3:1 b2:2 b3:2", 2, 1), ("b4:2E a4:1E", 2, 0)], ("S63",)
    ),
    "oldest started twice": Script(
        "oldest", [("a1:1S b1:2S", 0, 1), ("a2:1S b2:2", 2, 0), ("b3:2E a3:1E", 1, 0)], ("S53", "S63")
    ),
    "oldest that fails": Script(
        "oldest", [("a1:1S=667 b1:2S", 0, 1), ("b2:2 a2:1=666", 2, 0), ("a3:1E b3:2E", 1, 0)], ("S63",)
    ),
    "oldest with shapes that do not fit": Script(
        "oldest", [("a1:1S b1:2S", 0, 1), ("a2:1*2 b2:2*2", 2, 0), ("a3:1E b3:2E", 1, 0)], ("S63",)
    ),
    "oldest alone": Script(
        "oldest_one",
        [("a1:1S", 0, 1), ("b1:2S c1:3S c2:3E a2:1 b2:2", 2, 1), ("a3:1E", 2, 1), ("b3:2E", 4, 0)],
        ("S55", "S63"),
    ),
    "oldest that is idle": Script(
        "oldest_idle",
        [("a1:1S", 0, 1), ("b1:2S", 1, 0), ("", 1, 0), ("4000", 0, 0), ("a2:1 b2:2", 0, 0)],
        ("S56", "S63"),
    ),
    "oldest without time to wait": Script(
        "oldest_of_one",
        [("a1:1S", 0, 1), ("b1:2S!1000 b2:2", 0, 1), ("2500", 0, 1), ("b3:2 a2:1E", 2, 0)],
        ("S57", "S63"),
    ),
    "again and again": Script(
        "iterative",
        [("a:0=902", 0, 1), ("b:0=901 c:0=900", 3, 1), ("", 3, 0), ("d:7S=901", 2, 0), ("e:7", 0, 0)],
        ("S72", "P49"),
    ),
}

_REQUEST = re.compile(
    r'(?P<name>\w+):(?:(?P<number>\d+)|"(?P<text>\w+)")(?P<flags>S?E?)(?:\*(?P<width>\d+))?(?:=(?P<value>\d+))?'
    r"(?:!(?P<timeout>\d+))?"
)


def request_of(model: str, text: str) -> Any:
    """The request for its form in a script."""
    found = _REQUEST.fullmatch(text)
    assert found is not None, text
    request = service_pb2.ModelInferRequest(model_name=model, id=found["name"])
    parameters = request.parameters
    if found["text"]:
        parameters["sequence_id"].string_param = found["text"]
    else:
        number = int(found["number"])
        parameters["sequence_id"].int64_param = number - (2**64 if number >= 2**63 else 0)
    if "S" in found["flags"]:
        parameters["sequence_start"].bool_param = True
    if "E" in found["flags"]:
        parameters["sequence_end"].bool_param = True
    if found["timeout"]:
        parameters["timeout"].int64_param = int(found["timeout"]) * 1000
    width = int(found["width"] or 1)
    lead = [1] if MODELS[model].max_batch_size else []
    tensor = request.inputs.add(name="INPUT", datatype="INT32", shape=[*lead, width])
    tensor.contents.int_contents.extend([int(found["value"] or 5)] * width)
    return request


class Stage:
    """A model of one server, between scripts. `batches` are those that each instance has begun."""

    def __init__(self, server: Server, gates: Path, model: str) -> None:
        self._server = server
        self._model = model
        self._folders = [gates / f"{model}_0_{i}" for i in range(MODELS[model].instances)]
        self._sent = 0
        self._seen = [0] * len(self._folders)
        self._allowed = [0] * len(self._folders)

    def play(self, script: Script) -> dict[str, Any]:
        """The batches of each instance, and the answer to each request."""
        sent: queue.Queue[Any] = queue.Queue()
        answers: dict[str, list[str]] = {}
        number = sum(":" in part for text, *_ in script.phases for part in text.split())
        with grpc.insecure_channel(f"127.0.0.1:{self._server.grpc}") as channel:
            method = f"/{rawgrpc.SERVICE}/{rawgrpc.STREAM}"
            stream: Any = channel.stream_stream(
                method,
                service_pb2.ModelInferRequest.SerializeToString,
                service_pb2.ModelStreamInferResponse.FromString,
            )(iter(sent.get, None), timeout=PATIENCE)
            reader = threading.Thread(target=_read, args=(stream, answers, number), daemon=True)
            reader.start()
            held = 0
            for text, steps, after in script.phases:
                self._send(text, sent, answers)
                for step in range(steps):
                    self._let_go(held if step == 0 and held else 1)
                held = after
                self._comes_to_rest(held, answers)
            for i in range(len(self._folders)):
                self._allow(i, _ALL_BATCHES)
            reader.join(BEGINS)
            sent.put(None)
            stream.cancel()
            reader.join(PATIENCE)
        return {"batches": self._new_batches(), "answers": answers}

    def _send(self, text: str, sent: "queue.Queue[Any]", answers: dict[str, list[str]]) -> None:
        """Sends the requests, and waits until the server has them all: queued, in a batch, or answered. A number
        pauses. A refused request is in none of these until the answers to earlier requests of the stream are there."""
        gone = self._missing(answers)
        for part in text.split():
            if part.isdecimal():
                time.sleep(int(part) / 1000)
            else:
                sent.put(request_of(self._model, part))
                self._sent += 1
        if ":" in text:
            _wait(lambda: self._missing(answers) <= gone, ARRIVES)

    def _let_go(self, number: int) -> None:
        """Waits until this number of instances hold a batch, and releases one batch of each."""
        _wait(lambda: len(self._holding) >= number)
        for i in self._holding:
            self._allowed[i] += 1
            self._allow(i, self._allowed[i])

    def _comes_to_rest(self, held: int, answers: dict[str, list[str]]) -> None:
        """Waits until this number of instances hold a batch, and nothing more begins. If it is 0, also waits until all
        is answered, except for what comes after a missing answer."""
        _wait(lambda: len(self._holding) == held)
        if not held:
            _wait(lambda: self._begun <= set(answers), ENDS)
        time.sleep(LULL)

    def _missing(self, answers: dict[str, list[str]]) -> int:
        """The number of requests that are visible nowhere."""
        missing = self._sent - len(self._begun | set(answers))
        return max(0, missing - self._pending) if missing > 0 else 0

    @property
    def _holding(self) -> list[int]:
        """The instances that wait for permission."""
        return [i for i in range(len(self._folders)) if self._waits(i)]

    @property
    def _begun(self) -> set[str]:
        """The requests of the script that have been in a batch."""
        return {one["id"] for batches in self._batches() for batch in batches for one in batch if one["id"]}

    @property
    def _pending(self) -> int:
        """The requests in the server's queue."""
        line = f'nv_inference_pending_request_count{{model="{self._model}",version="1"}} '
        with urllib.request.urlopen(f"http://127.0.0.1:{self._server.metrics}/metrics", timeout=PATIENCE) as answer:
            lines = answer.read().decode().splitlines()
        return next(int(each.removeprefix(line)) for each in lines if each.startswith(line))

    def _waits(self, i: int) -> bool:
        log = self._folders[i] / "log"
        return log.exists() and log.read_text().count("\n") > self._allowed[i]

    def _allow(self, i: int, number: int) -> None:
        folder = self._folders[i]
        (folder / "next").write_text(str(number))
        (folder / "next").rename(folder / "allowed")

    def _batches(self) -> list[list[list[dict[str, Any]]]]:
        """The batches of each instance since the script began."""
        logs = [folder / "log" for folder in self._folders]
        texts = [log.read_text() if log.exists() else "" for log in logs]
        lines = [text[: text.rfind("\n") + 1].splitlines() for text in texts]  # the last one may still be written
        return [[json.loads(line) for line in each[seen:]] for each, seen in zip(lines, self._seen, strict=True)]

    def _new_batches(self) -> list[list[Any]]:
        found = [[[_comparable(one) for one in batch] for batch in batches] for batches in self._batches()]
        for i, batches in enumerate(found):
            self._seen[i] += len(batches)
            self._allowed[i] = self._seen[i]
            self._allow(i, self._allowed[i])
        self._sent = 0
        return found


def _wait(holds: Callable[[], bool], seconds: float = BEGINS) -> None:
    """Waits until it holds, for a limited time. The batches show differences later."""
    limit = time.monotonic() + seconds
    while not holds() and time.monotonic() < limit:
        time.sleep(0.03)


def _read(stream: Any, answers: dict[str, list[str]], number: int) -> None:
    try:
        for message in stream:
            answers.setdefault(message.infer_response.id, []).append(message.error_message or "answered")
            if sum(map(len, answers.values())) == number:
                return
    except grpc.RpcError:
        return


def _comparable(one: dict[str, Any]) -> dict[str, Any]:
    """A row, without the input of a row of no sequence: it has whatever was in memory."""
    if not one["id"]:
        one["inputs"]["INPUT"][2] = None
    return one
