"""The runtime, without its telemetry: each import of `openvino` would report to its maker."""

import sys

sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # so it cannot be imported

import openvino as ov  # noqa: E402  # after the line above

__all__ = ["ov"]
