"""The log of both servers over the same models: equal messages for a start, failures and an end, in the same form."""

import re
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress

import pytest

from tests.conformance import servers
from tests.conformance.pairs import pair_of
from tests.conformance.servers import MODELS

_LINE = re.compile(r'([IWE])\d{4} \d\d:\d\d:\d\d\.\d{6} \d+ ([\w.]+):(\d+)\] (?:"(.*)"|)')
_SERVED = ("int32", "raises")
_SAYS = """import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        logger = pb_utils.Logger
        logger.log_info("tab\\t \\"quoted\\" \\\\ é \\x1b")
        logger.log_warn("a warning")
        logger.log_error("an error")
        logger.log_verbose("nothing to see")

    def execute(self, requests):
        return []
"""
_SAYS_CONFIG = """
backend: "python"
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
instance_group [ { kind: KIND_CPU } ]
"""
_COMPARED = ("loading: ", "successfully loaded ", "successfully unloaded ", "Started ", "Failed to process")
_INFER = b'{"inputs":[{"name":"INPUT0","shape":[1],"datatype":"INT32","data":[1]}]}'

Logs = Callable[[bool], str]


@pytest.fixture(scope="module")
def logs(oracle: None, tmp_path_factory: pytest.TempPathFactory) -> Logs:
    """The log of a server, with its ports replaced by 1, 2 and 3."""
    folder = tmp_path_factory.mktemp("logs")
    repository = folder / "models"
    for model in _SERVED:
        servers.copy_models(repository / model, MODELS / model)
    (repository / "says" / "1").mkdir(parents=True)
    (repository / "says" / "1" / "model.py").write_text(_SAYS)
    (repository / "says" / "config.pbtxt").write_text(_SAYS_CONFIG)
    found = {}
    with pair_of(repository, folder) as both:
        for server in (both.ours, both.real):
            for model in ("raises", "int32"):
                with suppress(urllib.error.HTTPError):
                    urllib.request.urlopen(
                        f"http://127.0.0.1:{server.http}/v2/models/{model}/infer", _INFER, timeout=30
                    )
            server.stop(60)  # all that it says until it ends of itself
            text = server.log.read_text(errors="replace")
            for number, port in enumerate((server.http, server.grpc, server.metrics), 1):
                text = text.replace(f"127.0.0.1:{port}", f"127.0.0.1:{number}")
            found[server is both.ours] = text
    return lambda ours: found[ours]


def _messages(text: str) -> list[tuple[str, str]]:
    """Severity and text of the messages of both, sorted: models load and unload side by side."""
    found = [match for line in text.splitlines() if (match := _LINE.fullmatch(line))]
    return sorted((one[1], one[4]) for one in found if one[4] and one[4].startswith(_COMPARED))


def _said_by_model(text: str) -> list[tuple[str, ...]]:
    found = (_LINE.fullmatch(line) for line in text.splitlines())
    return [(one[1], one[3], one[4]) for one in found if one and one[2] == "model.py" and one[4]]


def _table(text: str, heading: str) -> list[list[str]]:
    """The cells of the table with this first cell."""
    lines = text.splitlines()
    at = next(i for i, line in enumerate(lines) if re.match(rf"\| {heading} ", line))
    rows = []
    for line in lines[at:]:
        if not line.startswith(("|", "+")):
            break
        if line.startswith("|"):
            rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


@pytest.mark.rows("L1", "L6")
def test_messages_are_those_of_the_real_server(logs: Logs) -> None:
    assert _messages(logs(True)) == _messages(logs(False))
    assert len(_messages(logs(True))) == 13


@pytest.mark.rows("L3", "L8", "P56")
def test_log_lines_of_a_model_are_those_of_the_real_server(logs: Logs) -> None:
    assert _said_by_model(logs(True)) == _said_by_model(logs(False))
    assert [letter for letter, *_ in _said_by_model(logs(True))] == ["I", "W", "E"]


@pytest.mark.rows("L6", "L7")
def test_tables_are_those_of_the_real_server(logs: Logs) -> None:
    """Without the real server's memory pools, version and library paths."""
    ours, real = logs(True), logs(False)
    assert _table(ours, "Model") == _table(real, "Model")
    assert _table(ours, "Repository Agent") == _table(real, "Repository Agent")
    names, real_names = ([row[0] for row in _table(text, "Backend")] for text in (ours, real))
    assert names == [real_names[0], *sorted(real_names[1:])]  # which has them in any order
    without = {"server_version", "pinned_memory_pool_byte_size", "min_supported_compute_capability"}
    options, wanted = ({row[0]: row[1] for row in _table(text, "Option")} for text in (ours, real))
    assert [name for name in options if name not in without] == [name for name in wanted if name not in without]
    assert {name for name in options if options[name] != wanted.get(name)} <= without
