"""The dashboard and the alerts of `deploy/`. Every expression must be valid, and its metrics and labels must be in a
scrape of a loaded server. The server's own code writes the GPU metrics from a fake reading, as this machine may have
none."""

import json
import re
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest

from halimede.measurement.machine import Seen, machine_families
from halimede.options import MetricsOptions
from halimede.platform.gpu_meters import GpuReading
from halimede.top.sample import read_metrics
from halimede.wire.prometheus import encode_metrics
from tests.compat.serving import Serving, write_model

LIMIT = 20.0
DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
OF_PROMETHEUS = {"up"}
LABELS_OF_PROMETHEUS = {"instance", "job"}

_ECHO = """import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", data)]) for data in inputs]
"""

Labels = Mapping[str, str]


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Labels]]:
    """The labels of each series by name, from a server that has done some of everything."""
    folder = tmp_path_factory.mktemp("deploy")
    models = folder / "models"
    write_model(models, "batched", "INT32", max_batch_size=8, more="dynamic_batching { }\n")
    write_model(models, "cached", "INT32", more="response_cache { enable: true }\n")
    (write_model(models, "echo", "INT32", backend="python") / "model.py").write_text(_ECHO)
    flags = (
        "--cache-config=local,size=1000000",
        "--metrics-interval-ms=50",
        "--metrics-config=summary_latencies=true",
        "--metrics-config=histogram_latencies=true",
    )
    with Serving(models, folder / "server.log", *flags) as serving:
        serving.wait_until_live()
        for model, shape in (("batched", [2, 1]), ("cached", [2]), ("cached", [2]), ("echo", [2])):
            tensor = {"name": "INPUT0", "datatype": "INT32", "shape": shape, "data": [1, 2]}
            body = json.dumps({"inputs": [tensor]}).encode()
            with urllib.request.urlopen(f"http://{serving.http_url}/v2/models/{model}/infer", body, LIMIT) as answer:
                answer.read()
        serving.until(lambda: "nv_cpu_utilization" in serving.metrics(), "measured no processors")
        text = serving.metrics()
    gpus = machine_families(Seen(gpus=(GpuReading("GPU-1", 0.5, 2, 1, 1.0, 2.0, 1.0),)), MetricsOptions())
    found: dict[str, list[Labels]] = {}
    for sample in read_metrics(text + encode_metrics(gpus).decode()):
        found.setdefault(sample.name, []).append(sample.labels)
    return found


def _alerts() -> list[str]:
    text = (DEPLOY / "prometheus" / "halimede.rules.yml").read_text()
    expressions = re.findall(r"^ +expr: (.+)$", text, re.MULTILINE)
    assert len(expressions) == text.count("- alert: ") > 5
    return expressions


def _panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((DEPLOY / "grafana" / "halimede.json").read_text())["panels"]
    return found


def _targets() -> list[tuple[str, str]]:
    """The expressions of the dashboard with its variables filled in, and the texts of their legends."""
    return [
        (target["expr"].replace("$__rate_interval", "1m").replace("$model", ".*"), target["legendFormat"])
        for panel in _panels()
        for target in panel.get("targets", ())
    ]


def _selectors(node: Any) -> Iterator[promql.VectorSelector]:
    if isinstance(node, promql.VectorSelector):
        yield node
    elif isinstance(node, promql.MatrixSelector):
        yield node.vector_selector
    elif isinstance(node, promql.BinaryExpr):
        yield from (*_selectors(node.lhs), *_selectors(node.rhs))
    elif isinstance(node, promql.Call):
        yield from (selector for arg in node.args for selector in _selectors(arg))
    elif isinstance(node, promql.AggregateExpr | promql.ParenExpr):
        yield from _selectors(node.expr)
    else:
        assert isinstance(node, promql.NumberLiteral), f"the test does not know {type(node)}"


def _grouped(node: Any) -> Iterator[str]:
    """The labels that aggregations keep."""
    parts: Sequence[Any] = ()
    if isinstance(node, promql.AggregateExpr):
        yield from node.modifier.labels if node.modifier is not None else ()
        parts = (node.expr,)
    elif isinstance(node, promql.BinaryExpr):
        parts = (node.lhs, node.rhs)
    elif isinstance(node, promql.Call):
        parts = node.args
    elif isinstance(node, promql.ParenExpr):
        parts = (node.expr,)
    for part in parts:
        yield from _grouped(part)


@pytest.mark.parametrize("expression", [*_alerts(), *(expression for expression, _ in _targets())])
def test_names_and_labels_are_in_a_scrape(scraped: dict[str, list[Labels]], expression: str) -> None:
    node = promql.parse(expression)
    selectors = list(_selectors(node))
    assert selectors
    for selector in selectors:
        assert selector.name
        if selector.name in OF_PROMETHEUS:
            continue
        assert selector.name in scraped, f"no metric {selector.name}"
        series = scraped[selector.name]
        for matcher in selector.matchers.matchers:
            assert any(matcher.name in labels for labels in series), f"no label {matcher.name} of {selector.name}"
        equal = {m.name: m.value for m in selector.matchers.matchers if m.op == promql.MatchOp.Equal}
        assert any(equal.items() <= labels.items() for labels in series), f"no series {selector.prettify()}"
        for label in set(_grouped(node)) - LABELS_OF_PROMETHEUS:
            assert any(label in labels for labels in series), f"no label {label} of {selector.name}"


@pytest.mark.parametrize(("expression", "legend"), [target for target in _targets() if "{{" in target[1]])
def test_legends_name_labels_that_the_expression_has(
    scraped: dict[str, list[Labels]], expression: str, legend: str
) -> None:
    node = promql.parse(expression)
    kept = set(_grouped(node))
    if not kept:
        kept = LABELS_OF_PROMETHEUS.union(*(scraped[s.name or ""][0] for s in _selectors(node)))
    assert set(re.findall(r"{{(\w+)}}", legend)) <= kept


def test_panels_have_ids_of_their_own_and_do_not_overlap() -> None:
    panels = _panels()
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert all(x < 24 for x, _ in cells)
