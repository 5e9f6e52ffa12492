"""Backends by what they declare: those of this package, those of other distributions, and their creation."""

import ast
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

import halimede
from halimede.backends import registry
from halimede.backends.creation import create_backend
from halimede.backends.homes import BackendOfTwoHomes
from halimede.backends.identity.backend import IdentityBackend
from halimede.backends.traits import Traits
from halimede.config import read
from halimede.config.identify import platforms
from halimede.errors import Invalid, Unavailable
from halimede.models.backend_pool import pool_to_look
from halimede.workers.calls import CallPort
from tests.backends.fakes import context, idle_loop

PACKAGE = Path(halimede.__file__).parent


def test_registry_lists_the_backends_of_this_release() -> None:
    assert set(registry.served()) == {
        "dali",
        "fil",
        "function",
        "identity",
        "mlflow",
        "onnxruntime",
        "openvino",
        "python",
        "pytorch",
        "sklearn",
        "tensorflow",
        "tensorrt",
        "tflite",
    }


def test_registry_knows_formats_in_the_order_in_which_they_are_searched() -> None:
    names = [each.filename for _, each in registry.formats()]
    assert names == [
        *("model.savedmodel", "model.graphdef", "model.plan", "model.onnx"),
        *("model.xml", "model.pt", "model.pt2", "model.tflite"),
        *("xgboost.json", "xgboost.ubj", "xgboost.model", "checkpoint.tl", "model.txt"),
        *("model.dali", "dali.py", "model.skops", "MLmodel"),
        "model.py",
    ]


def test_pool_creates_a_backend_by_name() -> None:
    with pool_to_look(lambda name: {}) as pool:
        backend = pool.get("identity")
    assert isinstance(backend, BackendOfTwoHomes)
    assert isinstance(backend._server(), IdentityBackend)


def test_pool_unknown_backend() -> None:
    with pool_to_look(lambda name: {}) as pool, pytest.raises(Invalid) as caught:
        pool.get("nonesuch")
    assert caught.value.message == (
        "unable to find backend library for backend 'nonesuch', try specifying runtime on the model configuration."
    )


def test_traits_can_be_read_without_the_runtime() -> None:
    """In a process of its own: here the runtimes may be imported already."""
    import subprocess

    code = (
        "import sys; from halimede.backends import registry; registry.known();"
        "assert not {'onnxruntime', 'halimede.backends.onnx.backend', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("traits", registry.served().values(), ids=lambda traits: str(traits.name))
def test_class_of_a_backend_declares_the_traits_of_its_package(traits: Traits) -> None:
    """Its module is read, because the runtime that it imports may not be installed."""
    module = ast.parse(Path(registry.origin_of(traits)).read_text())
    imported = [
        (node.module, alias.name)
        for node in ast.walk(module)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]
    assert (traits.module.rpartition(".")[0], "TRAITS") in imported
    name = traits.implementation.partition(":")[2]
    [found] = [node for node in module.body if isinstance(node, ast.ClassDef) and node.name == name]
    assigned = [node for node in found.body if isinstance(node, ast.Assign) and ast.unparse(node) == "traits = TRAITS"]
    assert len(assigned) == 1


ALLOWED = {
    *(f"workers/host/{name}.py" for name in ("activation", "builds", "installers")),
    "workers/child/signatures.py",
    "binding/arguments.py",
}
"""Modules that say "python" and mean the program, or "function" and mean any."""


def constants(tree: ast.Module) -> Iterator[str]:
    return (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))


def outside() -> list[Path]:
    """Modules that must know no backend by its name."""
    return [path for path in PACKAGE.rglob("*.py") if "backends" not in path.relative_to(PACKAGE).parts]


def test_no_module_outside_of_backends_names_a_backend() -> None:
    names = set(registry.served()) - {"identity"}  # which is the name of an encoding, too
    for path in outside():
        named = names.intersection(constants(ast.parse(path.read_text())))
        assert not named or str(path.relative_to(PACKAGE)) in ALLOWED, f"{path} names {named}"


def test_no_module_but_the_help_of_init_mentions_onnx() -> None:
    mentions = [path for path in outside() if "onnx" in path.read_text().lower()]
    mentions += [path for path in (PACKAGE / "backends").glob("*.py") if "onnx" in path.read_text().lower()]
    # What a model of a backend that is not here can be converted to is said where that backend is.
    there = {"cli/arguments.py", "backends/registry.py", "backends/elsewhere.py"}
    assert {str(path.relative_to(PACKAGE)) for path in mentions} <= there


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_creation_without_the_runtime_names_the_extra(modules: Path) -> None:
    (modules / "needs_runtime.py").write_text("import a_runtime_that_is_not_there\n")
    traits = Traits("b", "needs_runtime:B", extra="onnx")
    with idle_loop() as loop, pytest.raises(Unavailable) as caught:
        create_backend(traits, context(loop))
    assert "a_runtime_that_is_not_there" in caught.value.message
    assert "pip install 'halimede[onnx]'" in caught.value.message
    other = replace(traits, distribution="other")
    with idle_loop() as loop, pytest.raises(Unavailable, match=r"pip install 'other\[onnx\]'"):
        create_backend(other, context(loop))


def test_creation_of_a_broken_backend_is_no_missing_extra(modules: Path) -> None:
    (modules / "needs_own.py").write_text("import needs_own.no_such_module\n")
    with idle_loop() as loop, pytest.raises(ModuleNotFoundError):
        create_backend(Traits("b", "needs_own:B", extra="onnx"), context(loop))


def test_creation_imports_a_backend_when_it_is_asked_for(modules: Path) -> None:
    (modules / "lazy_backend.py").write_text("class B:\n    def __init__(self, context): self.got = context.settings\n")
    assert "lazy_backend" not in sys.modules
    with idle_loop() as loop:
        backend = create_backend(Traits("b", "lazy_backend:B"), context(loop, {"key": "value"}))
    assert vars(backend) == {"got": {"key": "value"}}
    del sys.modules["lazy_backend"]


@pytest.mark.parametrize("calls_models", [False, True])
def test_creation_gives_the_port_to_backends_that_call_models_only(modules: Path, calls_models: bool) -> None:
    (modules / "calling_backend.py").write_text("class B:\n    def __init__(self, given): self.calls = given.calls\n")
    port = cast(CallPort, object())
    with idle_loop() as loop:
        traits = Traits("b", "calling_backend:B", calls_models=calls_models)
        backend = create_backend(traits, replace(context(loop), calls=port))
    assert vars(backend) == {"calls": port if calls_models else None}
    del sys.modules["calling_backend"]


def installed(root: Path, name: str, entries: str) -> None:
    """A distribution with these entry points."""
    folder = root / f"{name}-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(f"[{registry.GROUP}]\n{entries}\n")


@pytest.fixture
def fresh() -> Iterator[None]:
    """A registry that looks for distributions once more, before and after."""
    caches = (registry.known, registry.served, registry.formats, platforms)
    for each in caches:
        each.cache_clear()
    yield
    for each in caches:
        each.cache_clear()


_DECLARED = """from halimede.backends.traits import Format, Traits
TRAITS = Traits("toy", "toy_backend:Toy", formats=(Format("model.toy", "toy_any", ending=".toy"),), aliases=("toys",))
PYTHON = Traits("python", "toy_backend:Toy")
VALUE = 1
class Toy:
    traits = TRAITS
    def __init__(self, context): pass
    def close(self): pass
"""


@pytest.mark.usefixtures("fresh")
def test_backend_of_another_distribution_is_found(modules: Path) -> None:
    (modules / "toy_backend.py").write_text(_DECLARED)
    installed(modules, "toys", "toy = toy_backend:TRAITS")
    model = modules / "models" / "m"
    (model / "1").mkdir(parents=True)
    (model / "1" / "model.toy").touch()
    draft = read(model)
    assert (draft.backend, draft.platform, draft.model_filename) == ("toy", "toy_any", "model.toy")
    assert registry.packages() == {"toy_backend"}
    with pool_to_look(lambda name: {}) as pool:
        assert type(pool.get("toy")).__name__ == "Toy"
    del sys.modules["toy_backend"]


@pytest.mark.usefixtures("fresh")
def test_file_of_two_backends_is_named_in_the_log(modules: Path, caplog: pytest.LogCaptureFixture) -> None:
    (modules / "toy_backend.py").write_text(_DECLARED.replace("model.toy", "model.xml"))
    installed(modules, "toys", "toy = toy_backend:TRAITS")
    registry.known()
    assert [record.getMessage() for record in caplog.records] == [
        "backend 'toy' of distribution 'toys' is not recognized by 'model.xml', a file of 'openvino': its models must "
        'say backend: "toy"'
    ]
    del sys.modules["toy_backend"]


@pytest.mark.usefixtures("fresh")
def test_distribution_whose_backend_cannot_be_used_is_named_in_the_log(
    modules: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (modules / "toy_backend.py").write_text(_DECLARED)
    before = set(registry.served())
    registry.served.cache_clear()
    registry.known.cache_clear()
    installed(modules, "taken", "python = toy_backend:PYTHON")
    installed(modules, "broken", "gone = toy_backend_that_is_not_there:TRAITS")
    installed(modules, "wrong", "wrong = toy_backend:VALUE")
    assert set(registry.served()) == before
    assert sorted(record.getMessage() for record in caplog.records) == [
        "backend 'gone' of distribution 'broken' is not used: ModuleNotFoundError: No module named "
        "'toy_backend_that_is_not_there'",
        "backend 'python' of distribution 'taken' is not used: there is already one with this name",
        "backend 'wrong' of distribution 'wrong' is not used: 'toy_backend:VALUE' is not a Traits",
    ]
    del sys.modules["toy_backend"]
