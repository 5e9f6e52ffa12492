"""The values of administrative requests that both protocols send alike: trace and log settings (H122, G11). Pure."""

import re
from collections.abc import Sequence

from halimede.errors import Invalid

LOG_FILE = "log file location can not be updated through network protocol"
"""Triton's text."""
TRACE_FILE = "trace file location can not be updated through network protocol"
"""Triton's text."""

MAX_LOAD_PARAMETERS = 10_000
"""Parameters of a request to load a model, each of which may be a file. Beyond: 400, INVALID_ARGUMENT."""

LEVELS = ("TIMESTAMPS", "TENSORS")
NUMBERS = {"trace_rate": "rate", "trace_count": "count", "log_frequency": "log_frequency"}
"""The numeric settings in the order in which they are read, and their fields in `TraceInfo`."""

INT32_MAX = 2**31 - 1
_SHOWN_RANGE = {"trace_rate": "[ 0, 4294967295 ]", "trace_count": "[ -1, 2147483647 ]"}
_NUMBER = re.compile(r"\s*([+-]?)0*([0-9]+)", re.ASCII)


def read_levels(names: Sequence[str]) -> tuple[str, ...] | None:
    """Returns the named levels, () for OFF, or None if no name is known, which changes nothing. Raises Invalid."""
    if "OFF" in names and len(names) > 1:
        raise Invalid("Expect only one trace level 'OFF' is specified")
    return tuple(level for level in LEVELS if level in names) or (() if "OFF" in names else None)


def read_number(setting: str, text: str, got: str) -> int:
    """Returns the number that a text begins with, as C's conversion does. `got` stands before the text in the error of
    a count that is too low. Raises Invalid."""
    found = _NUMBER.match(text)
    if found is None:
        raise Invalid(f"Unable to parse '{setting}', got: {text}")
    # Twenty digits are out of range, and `int` of very long text is slow.
    value = int(found[1] + found[2][:20])
    if setting == "trace_count" and -(2**31) <= value < -1:
        raise Invalid(f"Unable to parse 'trace_count'. Expecting value >= -1, {got}{text}")
    if not (-1 if setting == "trace_count" else 0) <= value <= INT32_MAX:
        shown = _SHOWN_RANGE.get(setting, _SHOWN_RANGE["trace_rate"])
        raise Invalid(f"Unable to parse '{setting}', value is out of range {shown}, got: {text}")
    return value
