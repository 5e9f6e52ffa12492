import sys
from pathlib import Path
from types import MappingProxyType

import pytest

from halimede.backends.identity.backend import IdentityBackend
from halimede.backends.registry import BACKENDS, BackendEntry, create_backend
from halimede.errors import Invalid, Unavailable
from tests.backends.fakes import idle_loop


def test_registry_creates_a_backend_by_name() -> None:
    with idle_loop() as loop:
        backend = create_backend("identity", loop, {})
    assert isinstance(backend, IdentityBackend)


def test_registry_lists_the_backends_of_this_release() -> None:
    assert set(BACKENDS) == {"identity", "onnxruntime", "python"}


def test_registry_unknown_backend() -> None:
    with idle_loop() as loop, pytest.raises(Invalid) as caught:
        create_backend("nonesuch", loop, {})
    assert caught.value.message == (
        "unable to find backend library for backend 'nonesuch', try specifying runtime on the model configuration."
    )


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def table(module: str, extra: str) -> MappingProxyType[str, BackendEntry]:
    return MappingProxyType({"b": BackendEntry(module, "B", extra)})


def test_registry_missing_runtime_names_the_extra(modules: Path) -> None:
    (modules / "needs_runtime.py").write_text("import a_runtime_that_is_not_there\n")
    with idle_loop() as loop, pytest.raises(Unavailable) as caught:
        create_backend("b", loop, {}, table("needs_runtime", "onnx"))
    assert "a_runtime_that_is_not_there" in caught.value.message
    assert "pip install 'halimede[onnx]'" in caught.value.message


def test_registry_broken_backend_of_ours_is_no_missing_extra(modules: Path) -> None:
    (modules / "needs_ours.py").write_text("import halimede.no_such_module\n")
    with idle_loop() as loop, pytest.raises(ModuleNotFoundError):
        create_backend("b", loop, {}, table("needs_ours", "onnx"))


def test_registry_imports_a_backend_only_when_it_is_created(modules: Path) -> None:
    (modules / "lazy_backend.py").write_text("class B:\n    def __init__(self, loop, settings): self.got = settings\n")
    entries = table("lazy_backend", "")
    assert "lazy_backend" not in sys.modules
    with idle_loop() as loop:
        backend = create_backend("b", loop, {"key": "value"}, entries)
    assert vars(backend) == {"got": {"key": "value"}}
    del sys.modules["lazy_backend"]
