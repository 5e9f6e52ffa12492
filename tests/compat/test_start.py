"""What a start imports. Every start waits for it, so libraries for some uses are imported when these begin."""

import re
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tests.backends import onnx_models
from tests.compat.serving import Serving

EVERYBODYS = {"google", "hpack", "httptools", "numpy", "onnxruntime", "orjson", "rapidjson", "uvloop"}
"""Libraries that a server of ONNX models needs for HTTP, gRPC, configurations and tensors."""

NOT_AT_START = (
    # Of ours: other commands, other kinds of model, and what flags ask for.
    *("halimede.checking", "halimede.devtools", "halimede.top", "halimede.http_client"),
    *("halimede.cli.arguments", "halimede.cli.check", "halimede.cli.completion", "halimede.cli.model_run"),
    *(
        "halimede.backends.identity.backend",
        "halimede.backends.python.backend",
        "halimede.workers.host.process",
        "halimede.workers.host.worker",
    ),
    *("halimede.workers.host.environments", "halimede.workers.in_process", "halimede.storage.stores"),
    *("halimede.cache.redis", "halimede.tracing.spans", "halimede.identities.file"),
    # Of the libraries: what takes milliseconds.
    *("tritonclient", "google.rpc", "google.api", "grpc"),
    *("numpy.ctypeslib", "numpy.f2py", "numpy.fft", "numpy.ma", "numpy.polynomial", "numpy.random", "numpy.testing"),
    *("onnxruntime.transformers", "onnxruntime.quantization", "onnxruntime.tools"),
    # Of Python.
    *("argparse", "configparser", "csv", "difflib", "email", "gettext", "html", "http", "multiprocessing", "pdb"),
    *("pydoc", "shutil", "sqlite3", "statistics", "tarfile", "tempfile", "unittest", "urllib.request", "xml"),
    *("tomllib", "zipfile"),
)


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The modules that a server with one ONNX model has imported when it answers, in order, as Python reports them."""
    folder = tmp_path_factory.mktemp("start")
    version = folder / "models" / "same" / "1"
    version.mkdir(parents=True)
    (version / "model.onnx").write_bytes(onnx_models.identity("FP32", ["batch", 4]))
    with Serving(folder / "models", folder / "log", environment={"PYTHONPROFILEIMPORTTIME": "1"}) as serving:
        serving.wait_until_live()
        assert serving.status("/v2/models/same/ready") == 200
        assert serving.stop() == 0
        return list(_names(serving.log))


def _names(log: Path) -> Iterator[str]:
    """The modules from the package itself on. What Python's own start imports depends on its installation."""
    lines = re.findall(r"^import time:.*\| +(\S+)$", log.read_text(errors="replace"), re.MULTILINE)
    return iter(lines[lines.index("halimede.compiled") :])


def test_start_imports_only_the_libraries_that_every_server_needs(imported: list[str]) -> None:
    libraries = {name.split(".")[0] for name in imported} & packages_distributions().keys()
    assert {"numpy", "onnxruntime"} <= libraries <= {*EVERYBODYS, "halimede"}


def test_start_imports_nothing_of_other_commands_and_features(imported: list[str]) -> None:
    assert "halimede.transport.grpc.server" in imported
    assert "halimede.backends.onnx.session" in imported
    assert not [name for name in imported if any(f"{name}.".startswith(f"{each}.") for each in NOT_AT_START)]
