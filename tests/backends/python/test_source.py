"""What the file of a Python model says without being run."""

from pathlib import Path

import pytest

from halimede.backends.api import Fault
from halimede.backends.python.source import PythonSource, gpu_fault, look_at, surely_completes_nothing

_EXECUTE = "    def execute(self, requests):\n        return []\n"


def looked_at(folder: Path, text: str | bytes) -> PythonSource | Fault:
    file = folder / "model.py"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return look_at(file)


@pytest.mark.parametrize(
    ("text", "completes"),
    [
        (f"class TritonPythonModel:\n{_EXECUTE}", False),
        (f"class TritonPythonModel:\n{_EXECUTE}    def auto_complete_config(config): ...\n", True),
        ("class TritonPythonModel:\n    execute = run\n", False),
        ("class TritonPythonModel(Base):\n    pass\n", True),
        ("from base import TritonPythonModel\n", True),
        ("from base import *\n", True),
        ("TritonPythonModel = make()\n", True),
        ("try:\n    import a\nexcept ImportError:\n    class TritonPythonModel: ...\n", True),
        ("class TritonPythonModel:\n    if x:\n        async def execute(self, requests): ...\n", False),
    ],
)
def test_class_is_found(text: str, completes: bool, tmp_path: Path) -> None:
    source = looked_at(tmp_path, text)
    assert isinstance(source, PythonSource)
    assert source.completes is completes


_CLASS = f'class TritonPythonModel:\n    """Every model is a TritonPythonModel."""\n{_EXECUTE}'


@pytest.mark.parametrize(
    ("text", "sure"),
    [
        (_CLASS, True),
        (f"import base\n\n{_CLASS}\nclass Other(base.Base): ...\n", True),
        (f"{_CLASS}    def auto_complete_config(config): ...\n", False),
        (f"{_CLASS}\nNAME = 'auto_complete_config'\n", False),
        (_CLASS.replace(":", "(Base):", 1), False),
        (_CLASS.replace(":", "(metaclass=Meta):", 1), False),
        (f"@completing\n{_CLASS}", False),
        (f"{_CLASS}\nTritonPythonModel = completing(TritonPythonModel)\n", False),
        (f"{_CLASS}\nsetattr(TritonPythonModel, NAME, complete)\n", False),
        (f"{_CLASS}\nfrom base import *\n", False),
        (f"{_CLASS}\nfrom base import Model as TritonPythonModel\n", False),
        (f"if True:\n    class TritonPythonModel: ...\n{_CLASS}", False),
        ("from base import TritonPythonModel\n", False),
        ("def (:\n", False),
        ("\0", False),
    ],
)
def test_file_that_shows_that_its_model_completes_nothing(text: str, sure: bool, tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text(text)
    assert surely_completes_nothing(file) is sure


def test_file_that_is_missing_shows_nothing(tmp_path: Path) -> None:
    assert not surely_completes_nothing(tmp_path / "model.py")


@pytest.mark.parametrize(
    ("text", "line", "told"),
    [
        ("x = 1\ndef (:\n", 2, "invalid syntax"),
        ("import os\n\nclass Model:\n    pass\n", 3, "no class 'TritonPythonModel'"),
        ("\nclass TritonPythonModel:\n    def exec(self): ...\n", 2, "no method 'execute'"),
        (b"\0", 0, "null bytes"),
        (b"x = '\xff'\n", 1, "utf-8"),
        ("", 0, "no class"),
    ],
)
def test_what_is_no_model(text: str | bytes, line: int, told: str, tmp_path: Path) -> None:
    fault = looked_at(tmp_path, text)
    assert isinstance(fault, Fault)
    assert fault.line in (line, 0 if b"\xff" in (text if isinstance(text, bytes) else b"") else line)
    assert told in fault.text


def test_names_of_tensors_with_their_lines(tmp_path: Path) -> None:
    text = f"""class TritonPythonModel:
{_EXECUTE}
    def answer(self, request):
        a = pb_utils.get_input_tensor_by_name(request, "A")
        b = pb_utils.get_input_tensor_by_name(name="B", inference_request=request)
        c = pb_utils.get_input_tensor_by_name(request, self.name)
        return pb_utils.InferenceResponse([pb_utils.Tensor("SUM", a), pb_utils.Tensor("SUM", b)])
"""
    source = looked_at(tmp_path, text)
    assert isinstance(source, PythonSource)
    assert (source.reads, source.writes) == ({"A": 6, "B": 7}, {"SUM": 9})


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('x = 1\nmodel.to("cuda")', 2),
        ("model.cuda()", 1),
        ('device = "cuda:0"', 1),
        ('device = "cuda" if torch.cuda.is_available() else "cpu"', 0),
        ("import torch.cuda", 0),
        ('"""Runs on cuda."""', 0),
        ("no Python", 0),
    ],
)
def test_code_that_asks_for_a_gpu_is_found(text: str, line: int, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(text)
    fault = gpu_fault(tmp_path / "model.py")
    assert (fault.line if fault is not None else 0) == line
