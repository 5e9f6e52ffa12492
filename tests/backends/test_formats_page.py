"""The table of docs/formats.md says what the backends declare."""

import re
from pathlib import Path

from halimede.backends import registry
from halimede.backends.traits import DeviceKind

PAGE = Path(__file__).parents[2] / "docs" / "formats.md"
ROW = re.compile(
    r"^\| (.+) \| `(\w+)` \| `(\w+)` \| ([^|]+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE
)


def test_table_of_formats_has_the_files_extras_and_devices_of_the_backends() -> None:
    rows = ROW.findall(PAGE.read_text())
    devices = {name: where for _, name, _, _, _, where, _, _ in rows if where != "as above"}
    assert {"onnxruntime", "openvino", "tensorflow", "tensorrt", "tflite"} <= set(devices)
    for words, name, extra, *_ in rows:
        traits = registry.served()[name]
        assert extra == traits.extra
        files = set(re.findall(r"`(model\.\w+)/?`", words)) - {"model.bin"}
        assert files <= {each.filename for each in traits.formats}
    for name, where in devices.items():
        kinds = registry.served()[name].devices
        assert ("CUDA" in where, "CPU" in where) == (DeviceKind.GPU in kinds, DeviceKind.CPU in kinds), name
