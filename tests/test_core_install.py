"""What `pip install halimede` without an extra can import: everything but the modules that are for an extra."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import halimede

PACKAGE = Path(halimede.__file__).parent

EXTRAS = (
    "cryptography",
    "fpdf",
    "grandalf",
    "grpc",
    "jinja2",
    "matplotlib",
    "nvidia",
    "obstore",
    "onnx",
    "onnxruntime",
    "opentelemetry",
    "openvino",
    "optuna",
    "PIL",
    "ai_edge_litert",
    "pynvml",
    "ray",
    "re2",
    "redis",
    "rich",
    "safetensors",
    "shtab",
    "sklearn",
    "skops",
    "tensorflow",
    "tensorrt",
    "treelite",
    "torch",
    "tritonclient",
    "yaml",
)
"""What the extras of pyproject.toml install, as it is imported."""

CLIENTS = {"grpcio", "tritonclient"}
"""The official clients: for the demo and the tests, not for a server."""

_OF_FORESTS = ("answers", "backend", "convert", "forest", "gpu", "graph", "predictor", "shap")

FOR_AN_EXTRA = {
    **{f"halimede.analyze.{name}": "analyze" for name in ("pages", "pdf", "plots", "reports")},
    "halimede.analyze.searches.optuna_search": "analyze",
    **{f"halimede.backends.fil.{name}": "fil" for name in _OF_FORESTS},
    "halimede.backends.mlflow.backend": "mlflow",
    "halimede.backends.sklearn.backend": "sklearn",
    "halimede.backends.sklearn.estimator": "sklearn",
    "halimede.backends.dali.backend": "dali",
    "halimede.backends.dali.library": "dali",
    "halimede.backends.dali.pipeline": "dali",
    "halimede.backends.onnx.backend": "onnx",
    "halimede.backends.onnx.session": "onnx",
    "halimede.backends.python.platforms.pytorch_platform": "torch",
    "halimede.backends.openvino.backend": "openvino",
    "halimede.backends.openvino.converters": "openvino",
    "halimede.backends.openvino.instance": "openvino",
    "halimede.backends.openvino.model": "openvino",
    "halimede.backends.openvino.runtime": "openvino",
    "halimede.backends.openvino.states": "openvino",
    **{
        f"halimede.backends.pytorch.{name}": "torch"
        for name in (
            *("backend", "device", "device_instance", "instance", "models", "module"),
            *("package", "probe", "program", "running", "script", "teams", "values"),
        )
    },
    "halimede.backends.tensorflow.session": "tensorflow",
    "halimede.backends.tensorrt.backend": "tensorrt",
    "halimede.backends.tflite.backend": "tflite",
    "halimede.backends.tflite.converters": "tensorflow",
    "halimede.cache.redis_tls": "redis",
    "halimede.cli.completion": "completion",
    "halimede.devtools.graph_svg": "graph",
    "halimede.perf.plot": "perf",
    **{f"halimede.ray.{name}": "ray" for name in ("application", "ingress", "port", "process", "replica", "routing")},
    "halimede.storage.stores": "cloud",
    "halimede.top.screen": "top",
}
"""Modules that are imported where their extra is asked for, and only there."""

IMPORT_ALL = """
import importlib, sys
for name in sys.argv[1].split(","):
    sys.modules[name] = None  # as if it were not installed
for name in sys.argv[2].split(","):
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        print(name)
"""


def test_core_install_lacks_only_the_modules_of_extras() -> None:
    paths = [path for path in sorted(PACKAGE.rglob("*.py")) if path.name != "__main__.py"]
    names = [_dotted(path) for path in paths if path.parent.name != "spawned"]  # not imported as a package
    command = [sys.executable, "-c", IMPORT_ALL, ",".join(EXTRAS), ",".join(names)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) == set(FOR_AN_EXTRA)


def test_core_install_has_no_client_of_the_protocol() -> None:
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())["project"]
    core = {re.split(r"[^\w-]", requirement)[0] for requirement in project["dependencies"]}
    assert {"numpy", "protobuf"} <= core
    assert not core & CLIENTS


def _dotted(path: Path) -> str:
    return ".".join(["halimede", *path.relative_to(PACKAGE).with_suffix("").parts]).removesuffix(".__init__")
