"""Warm-up samples and the response cache flag of a configuration (W1, K1)."""

from pathlib import Path

from halimede import config
from halimede.config import WarmupData, WarmupInput, WarmupSample
from halimede.tensors import BYTES, INT32, UNKNOWN_DATATYPE
from tests.config.models import IDENTITY, folder_of

WARMUP = """
model_warmup { name: "a" batch_size: 2 count: 3
  inputs { key: "X" value { data_type: TYPE_INT32 dims: [ 2, 3 ] zero_data: true } }
  inputs { key: "B" value { data_type: TYPE_STRING dims: [ 1 ] input_data_file: "f" } } }
model_warmup { name: "skipped" inputs { key: "X" value { data_type: TYPE_INT32 random_data: true } } }
model_warmup { name: "b" batch_size: 1 inputs { key: "X" value { random_data: false } } inputs { key: "Y" value { } } }
"""


def test_samples_keep_their_order_and_empty_ones_are_skipped(tmp_path: Path) -> None:
    value = config.read(folder_of(tmp_path, "m", IDENTITY + WARMUP)).finish()
    assert value.warmup == (
        WarmupSample(
            "a",
            2,
            3,
            (
                WarmupInput("B", BYTES, (1,), WarmupData.FILE, "f"),
                WarmupInput("X", INT32, (2, 3), WarmupData.ZERO),
            ),
        ),
        WarmupSample(
            "b",
            1,
            1,
            (
                WarmupInput("X", UNKNOWN_DATATYPE, (), WarmupData.RANDOM),
                WarmupInput("Y", UNKNOWN_DATATYPE, (), None),
            ),
        ),
    )


def test_response_cache(tmp_path: Path) -> None:
    for number, (text, enabled) in enumerate(
        (("", False), ("response_cache { }", False), ("response_cache { enable: true }", True))
    ):
        folder = folder_of(tmp_path, f"m{number}", f"{IDENTITY} {text}")
        assert config.read(folder).finish().response_cache == enabled
