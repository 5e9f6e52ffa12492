"""Models of TensorFlow Lite: whether values in the input decide how much a run does."""

import pytest

from halimede.backends.tflite.backend import open_interpreter
from halimede.backends.tflite.values import values_decide
from tests.formats.built import TENSORFLOW


@pytest.mark.parametrize(("name", "expected"), [("echo_2", False), ("less", False), ("two", False), ("counted", True)])
def test_values_that_decide_the_work(name: str, expected: bool) -> None:
    content = (TENSORFLOW / "models" / f"{name}.tflite").read_bytes()
    assert values_decide(open_interpreter(content, name, 1)) is expected
