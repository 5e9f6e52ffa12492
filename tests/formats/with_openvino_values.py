"""Models of OpenVINO: whether values in the input decide how much a run does."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from openvino import opset15 as ops

from halimede.backends.openvino.values import values_decide
from tests.formats.openvino_models import function, parameter

ZERO, ONE = (np.array(each, np.int64) for each in (0, 1))


def counted(x: Any) -> Any:
    return ops.range(ops.constant(ZERO), ops.squeeze(x), ops.constant(ONE), "i64")


def as_large_as_its_input(x: Any) -> Any:
    return ops.broadcast(ops.constant(ONE), ops.shape_of(x))


def twice(x: Any) -> Any:
    return ops.tile(x, ops.constant(np.array([2], np.int64)))


@pytest.mark.parametrize(("compute", "expected"), [(counted, True), (as_large_as_its_input, False), (twice, False)])
def test_values_that_decide_the_work(compute: Callable[[Any], Any], expected: bool) -> None:
    assert values_decide(function([parameter("x", "INT64", [-1])], compute)) is expected
