"""Metrics of Python models, compared with the real server (P57 to P59): the result of each call, and what is scraped.

Calls that the server behind the model refuses are missing: the real server of this machine sometimes hangs or crashes.
Its texts are in `tests/workers`. Each server has its own repository, where the model writes a note of the results.
"""

import json
import re
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conformance import servers
from tests.conformance.servers import Server

LIMIT = 30.0

_CONFIG = """
backend: "python"
input [ { name: "INPUT0" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_STRING dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU } ]
"""

_MODEL = """import json
import os

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        family = pb_utils.MetricFamily  # which the real server does not offer while it completes a configuration
        kinds = {"COUNTER": family.COUNTER, "GAUGE": family.GAUGE, "HISTOGRAM": family.HISTOGRAM}
        self.names = {**globals(), **kinds, "FAMILY": family}
        folder = args["model_repository"]
        with open(os.path.join(folder, "steps.json")) as file:
            said = [self.run(source) for source in json.load(file)]
        with open(os.path.join(folder, "said.json"), "w") as file:
            json.dump(said, file)

    def run(self, source):
        try:
            exec("it = " + source, self.names)
            return repr(self.names["it"])
        except Exception as error:
            return type(error).__name__ + ": " + str(error)

    def execute(self, requests):
        return None
"""

STEPS = (
    "FAMILY(name='c', description='A counter', kind=COUNTER)",
    "globals().update(c=it)",
    "globals().update(m=c.Metric(labels={'b': '1', 'a': '2'}))",
    "m.value()",
    "m.increment(1)",
    "m.increment(2.5)",
    "m.increment(np.float32(0.25))",
    "m.increment(True)",
    "m.value()",
    "m.increment('1')",
    "m.increment(None)",
    "m.increment(value=1)",
    "m.value()",
    "globals().update(same=c.Metric({'a': '2', 'b': '1'}))",
    "same.increment(10)",
    "m.value() == same.value()",
    "globals().update(also=FAMILY('c', 'Another text', COUNTER))",
    "globals().update(other=also.Metric({'a': 'say \"hi\"\\n and \\\\ and ä'}))",
    "globals().update(g=FAMILY('g', 'A gauge', GAUGE))",
    "globals().update(level=g.Metric())",
    "level.set(5)",
    "level.increment(-2.25)",
    "level.value()",
    "globals().update(values=[1e-7, 123456789.123456789, 1e22, 0.1 + 0.2, 1e15, *map(float, ('nan', 'inf', '-inf'))])",
    "globals().update(more=[g.Metric({'n': str(i)}) for i in range(8)])",
    "[metric.set(value) for metric, value in zip(more, values)]",
    "globals().update(h=FAMILY('h', 'A histogram', HISTOGRAM))",
    "h.Metric()",
    "h.Metric({})",
    "h.Metric(buckets=(1, 2))",
    "h.Metric(buckets='ab')",
    "h.Metric(buckets=['a'])",
    "globals().update(times=h.Metric({'x': 'y'}, [-1, 0.1, 1, 2.5, np.float32(5)]))",
    "[times.observe(value) for value in (-3, 0.05, 1, 1.5, 3, 100)]",
    "times.observe('x')",
    "globals().update(none=h.Metric(buckets=[]))",
    "none.observe(float('nan'))",
    "c.Metric(buckets=[1])",
    "g.Metric(buckets=[])",
    "c.Metric([('a', 'b')])",
    "c.Metric('a')",
    "c.Metric(1)",
    "c.Metric({'a': b'x'})",
    "c.Metric({b'a': 'x'})",
    "c.Metric(label={'a': 'b'})",
    "FAMILY('a', 'b', 'c')",
    "FAMILY('a', 'b', 0)",
    "FAMILY(1, 'b', COUNTER)",
    "FAMILY('a', 'b')",
    "globals().update(colon=FAMILY('_a:b', 'With a colon', COUNTER))",
    "globals().update(bare=colon.Metric())",
    "globals().update(lost=FAMILY('lost', '', COUNTER).Metric())",
    "lost.increment(1)",
    "lost.set(1)",
    "lost.observe(1)",
    "lost.value()",
    "(type(lost)({'a': 'b'}))",
    "(repr(COUNTER), int(GAUGE), HISTOGRAM.name, type(COUNTER).__name__)",
    "pb_utils.PreferredMemory('x')",
    "pb_utils.PreferredMemory(1, 0)",
    "pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_GPU, 'x')",
    "type(pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_CPU)).__name__",
    "type(pb_utils.PreferredMemory(preferred_memory_type=pb_utils.TRITONSERVER_MEMORY_GPU, preferred_device_id=1))",
    "type(pb_utils.InferenceRequest(inputs=[], requested_output_names=[], model_name='x').trace()).__name__",
    "pb_utils.InferenceRequest(inputs=[], requested_output_names=[], model_name='x').trace().get_context()",
    "pb_utils.InferenceRequest(inputs=[], requested_output_names=[], model_name='x', trace=3)",
    "pb_utils.InferenceRequest(inputs=[], requested_output_names=[], model_name='x', preferred_memory=3)",
)
"""The calls, one after the other. `it` is the result of the last one."""


def _made(folder: Path) -> Path:
    version = folder / "made" / "1"
    version.mkdir(parents=True)
    (version.parent / "config.pbtxt").write_text(_CONFIG)
    (version.parent / "steps.json").write_text(json.dumps(STEPS))
    (version / "model.py").write_text(_MODEL)
    return folder


@dataclass(frozen=True, slots=True)
class Asked:
    """The model's note, and the text of the server's metrics."""

    said: list[str]
    metrics: str


@pytest.fixture(scope="module")
def asked(oracle: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Asked, Asked]]:
    """Our results and the real server's."""
    folder = tmp_path_factory.mktemp("metrics")
    commands = {"ours": servers.our_command(), "the real server": servers.real_command()}
    with ExitStack() as stack:
        notes = {}
        for name, command in commands.items():
            models = _made(folder / name.split()[-1])
            server = stack.enter_context(Server(name, command, models, folder / f"{models.name}.log"))
            notes[server] = models / "made" / "said.json"
        for server in notes:
            server.wait()
        ours, real = (_asked(server, note) for server, note in notes.items())
        yield ours, real


def _asked(server: Server, note: Path) -> Asked:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.metrics}/metrics", timeout=LIMIT) as answer:
        return Asked([_comparable(each) for each in json.loads(note.read_text())], answer.read().decode())


def _comparable(text: str) -> str:
    """A result without addresses. Of a TypeError only the type: its text lists the signatures of compiled classes, or
    is the interpreter's own."""
    return "TypeError" if text.startswith("TypeError: ") else re.sub(r"0x[0-9a-f]+", "0x", text)


@pytest.mark.rows("P54", "P55", "P57", "P58")
def test_every_call_has_the_result_of_the_real_server(asked: tuple[Asked, Asked]) -> None:
    ours, real = asked
    assert list(zip(STEPS, ours.said, strict=True)) == list(zip(STEPS, real.said, strict=True))


def _families(text: str) -> list[tuple[str, list[str]]]:
    """The heads of the models' families, in order, and their lines, sorted: the real server has them in the order of a
    hash table."""
    found: list[tuple[str, list[str]]] = []
    for family in re.split(r"^(?=# HELP )", text, flags=re.MULTILINE):
        head, *lines = family.splitlines() or [""]
        if head and not head.startswith(("# HELP nv_", "# HELP halimede_")):
            found.append((head, sorted(lines)))
    return found


@pytest.mark.rows("P57", "P58", "M23")
def test_exposition_is_that_of_the_real_server(asked: tuple[Asked, Asked]) -> None:
    ours, real = (_families(one.metrics) for one in asked)
    assert [head for head, _ in ours] == [
        "# HELP c A counter",
        "# HELP _a:b With a colon",
        "# HELP g A gauge",
        "# HELP h A histogram",
    ]
    assert ours == real
