"""Metrics that Python models create, as they are scraped (P57 to P59, M23)."""

import json
import os
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compat.serving import Serving, write_model

LIMIT = 60.0

_SCRIPTED = """import os

import numpy as np
import triton_python_backend_utils as pb_utils

FAMILY = pb_utils.MetricFamily


class TritonPythonModel:
    def initialize(self, args):
        self.hits = FAMILY(name="hits", description="Requests seen", kind=FAMILY.COUNTER)
        self.mine = self.hits.Metric(labels={"model": args["model_name"]})
        self.each = self.hits.Metric(labels={"pid": str(os.getpid())})

    def execute(self, requests):
        found = []
        for request in requests:
            self.mine.increment(1)
            self.each.increment(1)
            source = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()[0].decode()
            names = {"self": self, "returned": os.getpid(), **globals()}
            try:
                exec(source, names)
            except Exception as error:
                names["returned"] = error
            text = str(names["returned"]).encode()
            found.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.array([text], object))]))
        return found

    def finalize(self):
        self.mine.increment(100)
        assert self.mine.value() >= 100
"""


class Scripted:
    """A server in explicit mode with two instances of the model `one` and one of `two`. They count their requests as
    `hits`, and run the source that they get."""

    def __init__(self, folder: Path) -> None:
        self.models = folder / "models"
        for name, count in (("one", 2), ("two", 1)):
            version = write_model(self.models, name, "BYTES", backend="python")
            (version / "model.py").write_text(_SCRIPTED)
            config = version.parent / "config.pbtxt"
            config.write_text(config.read_text().replace("KIND_CPU", f"KIND_CPU count: {count}"))
        self.serving = Serving(self.models, folder / "server.log", "--model-control-mode=explicit", "--load-model=*")

    def run(self, source: str, model: str = "two") -> str:
        """The value of `returned` after the source, or the error."""
        document = {"inputs": [{"name": "INPUT0", "datatype": "BYTES", "shape": [1], "data": [source]}]}
        said = self.post(f"/v2/models/{model}/infer", document)
        return str(json.loads(said)["outputs"][0]["data"][0])

    def post(self, path: str, document: object) -> bytes:
        url = f"http://{self.serving.http_url}{path}"
        with urllib.request.urlopen(url, json.dumps(document).encode(), LIMIT) as answer:
            return bytes(answer.read())

    def lines(self, family: str) -> list[str]:
        """The lines of a family, and of those whose names begin with its name."""
        found = self.serving.metrics().splitlines()
        return [line for line in found if line.removeprefix("# HELP ").removeprefix("# TYPE ").startswith(family)]


@pytest.fixture
def scripted(tmp_path: Path) -> Iterator[Scripted]:
    made = Scripted(tmp_path)
    with made.serving:
        made.serving.wait_until_live()
        yield made
        assert made.serving.stop() == 0


@pytest.mark.rows("P57", "P58", "M23")
def test_instances_and_models_count_in_one_family(scripted: Scripted) -> None:
    pids = [scripted.run("", "one") for _ in range(4)]
    assert len(set(pids)) == 2, "instances take their turn"
    other = scripted.run("")
    assert scripted.lines("hits")[:2] == ["# HELP hits Requests seen", "# TYPE hits counter"]
    assert sorted(scripted.lines("hits")[2:]) == sorted(
        [
            'hits{model="one"} 4',
            'hits{model="two"} 1',
            *(f'hits{{pid="{pid}"}} 2' for pid in set(pids)),
            f'hits{{pid="{other}"}} 1',
        ]
    )


@pytest.mark.rows("P58")
def test_metric_is_visible_when_the_answer_arrives(scripted: Scripted) -> None:
    for count in range(1, 51):
        scripted.run("")
        assert 'hits{model="two"} ' + str(count) in scripted.lines("hits")


@pytest.mark.rows("P57", "P58")
def test_every_kind_is_shown(scripted: Scripted) -> None:
    scripted.run(
        "self.gauge = FAMILY('level', 'How high', FAMILY.GAUGE); self.level = self.gauge.Metric()\n"
        "self.level.set(2.5); self.level.increment(-0.25)\n"
        "self.histogram = FAMILY('size', '', FAMILY.HISTOGRAM)\n"
        "self.size = self.histogram.Metric({'b': 'x', 'a': 'y'}, [0.5, 2])\n"
        "for value in (0.25, 1, 2, 7): self.size.observe(value)"
    )
    assert scripted.lines("level") == ["# HELP level How high", "# TYPE level gauge", "level 2.25"]
    assert scripted.lines("size") == [
        "# TYPE size histogram",
        'size_count{a="y",b="x"} 4',
        'size_sum{a="y",b="x"} 10.25',
        'size_bucket{a="y",b="x",le="0.5"} 1',
        'size_bucket{a="y",b="x",le="2"} 3',
        'size_bucket{a="y",b="x",le="+Inf"} 4',
    ]
    assert scripted.run("returned = self.level.value()") == "2.25"


@pytest.mark.rows("P59")
def test_metrics_end_with_their_objects(scripted: Scripted) -> None:
    scripted.run("self.gauge = FAMILY('level', '', FAMILY.GAUGE); self.level = self.gauge.Metric()")
    scripted.run("self.other = self.gauge.Metric({'a': 'b'})")
    assert scripted.lines("level") == ["# TYPE level gauge", "level 0", 'level{a="b"} 0']
    scripted.run("del self.level")
    assert scripted.lines("level") == ["# TYPE level gauge", 'level{a="b"} 0']
    scripted.run("del self.gauge")
    assert scripted.lines("level") == []
    assert "'MetricFamily' has been deleted" in scripted.run("self.other.set(1)")


@pytest.mark.rows("P59", "M26")
def test_metrics_end_with_their_model(scripted: Scripted) -> None:
    assert [line for line in scripted.lines("hits") if 'model="two"' in line] == ['hits{model="two"} 0']
    scripted.post("/v2/repository/models/two/unload", {})
    scripted.serving.until(
        lambda: not any('model="two"' in line for line in scripted.lines("hits")), "shows metrics of no model"
    )
    assert len(scripted.lines("hits")) == 2 + 3, "those of the other model stay"
    scripted.post("/v2/repository/models/one/unload", {})
    scripted.serving.until(lambda: not scripted.lines("hits"), "shows metrics of no model")
    scripted.post("/v2/repository/models/two/load", {})
    assert 'hits{model="two"} 0' in scripted.lines("hits")


@pytest.mark.rows("P59")
def test_metrics_end_with_their_process(scripted: Scripted) -> None:
    pid = scripted.run("", "one")
    other = scripted.run("", "one")
    assert 'hits{model="one"} 2' in scripted.lines("hits")
    os.kill(int(pid), signal.SIGKILL)
    scripted.serving.until(
        lambda: not any(pid in line for line in scripted.lines("hits")), "shows metrics of a dead process"
    )
    assert f'hits{{pid="{other}"}} 1' in scripted.lines("hits")
    assert 'hits{model="one"} 2' in scripted.lines("hits"), "the other instance has it too"


def test_metrics_page_survives_misuse_by_models(scripted: Scripted) -> None:
    assert "Invalid label name" in scripted.run(
        "self.h = FAMILY('h', 'two\\nlines', FAMILY.HISTOGRAM); self.h.Metric({'le': '1'}, [])"
    )
    scripted.run("self.keep = self.h.Metric({'a': 'say \"hi\"\\n\\\\'}, [1, float('inf')])")
    assert "different type" in scripted.run("FAMILY('nv_inference_count', '', FAMILY.GAUGE)")
    assert "different type" in scripted.run("FAMILY('h_sum', '', FAMILY.GAUGE)")
    scripted.run(
        "self.own = FAMILY('nv_inference_count', '', FAMILY.COUNTER)\n"
        "self.twice = self.own.Metric({'model': 'two', 'version': '1'}); self.twice.increment(1000)"
    )
    assert "a model instance may have" in scripted.run(
        "self.many = FAMILY('many', '', FAMILY.COUNTER)\nself.all = []\n"
        "for i in range(10 ** 6): self.all.append(self.many.Metric({'i': str(i)}))"
    )
    own = scripted.lines("nv_inference_count{")
    assert len(own) == len({line.rpartition(" ")[0] for line in own}) == 2
    assert scripted.lines("h_") == [
        'h_count{a="say \\"hi\\"\\n\\\\"} 0',
        'h_sum{a="say \\"hi\\"\\n\\\\"} 0',
        'h_bucket{a="say \\"hi\\"\\n\\\\",le="1"} 0',
        'h_bucket{a="say \\"hi\\"\\n\\\\",le="+Inf"} 0',
    ]
    assert "# HELP h two\\nlines" in scripted.lines("h")
    many = scripted.lines("many")
    assert 10_000 < len(many) < 20_010


@pytest.mark.rows("P57", "P58", "P59")
def test_in_process_model_has_metrics(scripted: Scripted) -> None:
    config = scripted.models / "two" / "config.pbtxt"
    config.write_text(config.read_text() + 'parameters { key: "EXECUTION" value { string_value: "in_process" } }\n')
    scripted.post("/v2/repository/models/two/unload", {})
    scripted.serving.until(lambda: len(scripted.lines("hits")) == 2 + 3, "shows metrics of no model")
    scripted.post("/v2/repository/models/two/load", {})
    assert scripted.run("") == str(scripted.serving.process.pid)
    assert 'hits{model="two"} 1' in scripted.lines("hits")
    assert "different type" in scripted.run("FAMILY('hits', '', FAMILY.GAUGE)")
    assert scripted.run("returned = self.mine.value()") == "3.0"
    scripted.run("self.kept = FAMILY('kept', '', FAMILY.GAUGE); self.metric = self.kept.Metric()")
    assert scripted.lines("kept") == ["# TYPE kept gauge", "kept 0"]
    scripted.post("/v2/repository/models/two/unload", {})
    scripted.serving.until(lambda: not scripted.lines("kept"), "shows metrics of no model")
    assert len(scripted.lines("hits")) == 2 + 3
